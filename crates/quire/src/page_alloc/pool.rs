//! The whole free blocks of one region: a bit each, zero for free, with a summary of the words that are full.
//!
//! The bits start at a 1 GiB boundary, so that an aligned run of blocks is an aligned run of bits. Zeroed memory is a
//! pool in which everything is free.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::BlockNumber;
use crate::limits::SECTION_BLOCKS;
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
    /// The word at which the last search for one block ended.
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

    /// Takes an aligned run of blocks, a power of two, if there is one.
    pub(super) fn take(&mut self, blocks: u32) -> Option<BlockNumber> {
        if self.free < blocks {
            return None;
        }
        let bit = if blocks == 1 { self.find_one() } else { self.find_run(blocks as usize) }?;
        self.mark(bit, blocks as usize, true);
        self.free -= blocks;
        Some(BlockNumber(self.origin + bit as u32))
    }

    /// Takes exactly these blocks, which are free: they hold metadata.
    pub(super) fn reserve(&mut self, first: BlockNumber, blocks: u32) {
        self.mark((first.0 - self.origin) as usize, blocks as usize, true);
        self.free -= blocks;
    }

    /// Puts an aligned run of blocks back.
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

    /// Free blocks as the bits say it; for `validate`.
    pub(super) fn count_free(&self) -> u32 {
        self.taken.iter().map(|word| word.load(Ordering::Relaxed).count_zeros()).sum()
    }

    /// Whether the bit of a block says that it is free; for `validate`.
    pub(super) fn is_free(&self, block: BlockNumber) -> bool {
        self.spans(block) && !self.is_taken((block.0 - self.origin) as usize)
    }

    fn is_taken(&self, bit: usize) -> bool {
        self.taken[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    /// The lowest free bit at or after the hint, or before it.
    fn find_one(&mut self) -> Option<usize> {
        let word = self.next_with_room(self.hint).or_else(|| self.next_with_room(0))?;
        self.hint = word;
        Some(word * 64 + (!self.taken[word].load(Ordering::Relaxed)).trailing_zeros() as usize)
    }

    /// The first word at or after `from` that is not full.
    fn next_with_room(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut room = !self.full.get(at)?.load(Ordering::Relaxed) & u64::MAX << (from % 64);
        while room == 0 {
            at += 1;
            room = !self.full.get(at)?.load(Ordering::Relaxed);
        }
        Some(at * 64 + room.trailing_zeros() as usize)
    }

    /// The lowest aligned run of free bits: linear in words at worst, full words skipped 64 at a time.
    fn find_run(&self, blocks: usize) -> Option<usize> {
        let mut word = self.next_with_room(0)?;
        loop {
            if blocks <= 64 {
                let free = !self.taken[word].load(Ordering::Relaxed);
                let mask = u64::MAX >> (64 - blocks);
                if let Some(bit) = (0..64).step_by(blocks).find(|&bit| free >> bit & mask == mask) {
                    return Some(word * 64 + bit);
                }
            } else {
                let words = blocks / 64;
                word = word.next_multiple_of(words);
                let group = self.taken.get(word..word + words)?;
                if group.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                    return Some(word * 64);
                }
                word += words - 1;
            }
            word = self.next_with_room(word + 1)?;
        }
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
