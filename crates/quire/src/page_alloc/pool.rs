//! The whole free blocks of one region: a bit each, zero for free, with a summary of the words that are full.
//!
//! The bits start at a 1 GiB boundary, so that an aligned run of blocks is an aligned run of bits. Zeroed memory is a
//! pool in which everything is free.

use core::sync::atomic::{AtomicU64, Ordering};

use super::runs::{PoolBits, Run};
use crate::addr::BlockNumber;
use crate::limits::{SECTION_BLOCKS, WHOLE_BLOCKS_SHORT};
use crate::memmap::BootSlice;

/// Words of bits for `count` blocks from `first`, and words of the summary.
pub(super) fn pool_words(first: BlockNumber, count: u32) -> (usize, usize) {
    let words = (first.0 as usize % SECTION_BLOCKS + count as usize).div_ceil(64);
    (words, words.div_ceil(64))
}

/// The blocks of one region. Under its lock.
pub(super) struct Pool {
    /// The block of bit 0, a multiple of 512.
    origin: u32,
    /// The region: its first block and how many.
    first: BlockNumber,
    count: u32,
    /// One bit a block: 1 taken or not memory.
    taken: BootSlice<AtomicU64>,
    /// One bit a word of `taken`: 1 when the word is all ones.
    full: BootSlice<AtomicU64>,
    /// Free blocks.
    pub(super) free: u32,
    /// Every word below is full, so that no search need look there.
    hint: usize,
}

impl Pool {
    /// The pool of `count` blocks from `first`, over tables of zeroes of the sizes that [`pool_words`] says.
    pub(super) fn new(
        first: BlockNumber,
        count: u32,
        taken: BootSlice<AtomicU64>,
        full: BootSlice<AtomicU64>,
    ) -> Self {
        let origin = first.0 - first.0 % SECTION_BLOCKS as u32;
        let mut pool = Self { origin, first, count, taken, full, free: count, hint: 0 };
        let (from, to) = ((first.0 - origin) as usize, (first.0 - origin + count) as usize);
        pool.mark(0, from, true);
        pool.mark(to, taken.len() * 64 - to, true);
        for word in taken.len()..full.len() * 64 {
            pool.set_full(word, true);
        }
        pool
    }

    /// Takes the lowest run of free blocks that starts at a multiple of `align` blocks, a power of two, if there is one.
    pub(super) fn take(&mut self, blocks: u32, align: u32) -> Option<BlockNumber> {
        if self.free < blocks {
            return None;
        }
        self.hint = self.bits().next_with_room(self.hint)?;
        let bit = if blocks == 1 && align == 1 {
            self.hint * 64 + (!self.taken[self.hint].load(Ordering::Relaxed)).trailing_zeros() as usize
        } else {
            let run = Run { blocks: blocks as usize, align: align as usize, origin: self.origin as usize };
            self.bits().find_run(self.hint, run).0?
        };
        self.mark(bit, blocks as usize, true);
        self.free -= blocks;
        Some(BlockNumber(self.origin + bit as u32))
    }

    /// Takes exactly these blocks, which are free: they hold metadata.
    pub(super) fn reserve(&mut self, first: BlockNumber, blocks: u32) {
        self.mark((first.0 - self.origin) as usize, blocks as usize, true);
        self.free -= blocks;
    }

    /// Whether so few blocks are free that partly used ones should be used first, wherever they are.
    pub(super) fn is_short(&self) -> bool {
        self.free <= self.count / WHOLE_BLOCKS_SHORT
    }

    /// Puts a run of blocks back.
    pub(super) fn put(&mut self, first: BlockNumber, blocks: u32) {
        let bit = (first.0 - self.origin) as usize;
        debug_assert!((bit..bit + blocks as usize).all(|bit| self.is_taken(bit)));
        self.mark(bit, blocks as usize, false);
        self.free += blocks;
        self.hint = self.hint.min(bit / 64);
    }

    /// Whether the block is one of the region's.
    pub(super) fn spans(&self, block: BlockNumber) -> bool {
        block.0 >= self.first.0 && block.0 - self.first.0 < self.count
    }

    /// How many blocks of the region there are from `block`, which is one of them, to its end.
    pub(super) fn blocks_from(&self, block: BlockNumber) -> u32 {
        self.first.0 + self.count - block.0
    }

    /// Free blocks as the bits say it; for `validate`.
    pub(super) fn count_free(&self) -> u32 {
        debug_assert!(self.bits().next_with_room(0).is_none_or(|word| word >= self.hint));
        self.taken.iter().map(|word| word.load(Ordering::Relaxed).count_zeros()).sum()
    }

    /// Whether the bit of a block says that it is free; for `validate`.
    pub(super) fn is_free(&self, block: BlockNumber) -> bool {
        self.spans(block) && !self.is_taken((block.0 - self.origin) as usize)
    }

    fn is_taken(&self, bit: usize) -> bool {
        self.taken[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    fn bits(&self) -> PoolBits<'_> {
        PoolBits { taken: &self.taken, full: &self.full }
    }

    fn mark(&mut self, from: usize, count: usize, taken: bool) {
        let mut at = from;
        while at < from + count {
            let in_word = (64 - at % 64).min(from + count - at);
            let mask = (u64::MAX >> (64 - in_word)) << (at % 64);
            let word = self.taken[at / 64].load(Ordering::Relaxed);
            let word = if taken { word | mask } else { word & !mask };
            self.taken[at / 64].store(word, Ordering::Relaxed);
            self.set_full(at / 64, word == u64::MAX);
            at += in_word;
        }
    }

    fn set_full(&mut self, word: usize, full: bool) {
        let summary = &self.full[word / 64];
        let bits = summary.load(Ordering::Relaxed) & !(1 << (word % 64));
        summary.store(bits | u64::from(full) << (word % 64), Ordering::Relaxed);
    }
}
