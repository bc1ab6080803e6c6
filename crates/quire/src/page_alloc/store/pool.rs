//! The whole free blocks of one region. Each has a bit, zero for free, with a summary of the words that are
//! full, and another bit, zero for blocks known to be zero, which counts while they are free.
//!
//! The bits start at a 1 GiB boundary, so that an aligned run of blocks is an aligned run of bits. Zeroed
//! tables are a pool in which every block is free and zero.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::BlockNumber;
use crate::limits::{POOL_WORDS_LOOKED_AT, SECTION_BLOCKS, WHOLE_BLOCKS_SHORT};
use crate::memmap::{BootSlice, MemMap};
use crate::page_alloc::request::gfp::Contents;
use crate::page_alloc::store::isolated::COLLECTED;
use crate::page_alloc::store::runs::{PoolBits, Run};

/// Words of the bits of an area of 1 GiB.
const AREA_WORDS: usize = SECTION_BLOCKS / 64;

/// Words of bits for `count` blocks from `first`, and words of the summary.
pub(in crate::page_alloc) fn pool_words(first: BlockNumber, count: u32) -> (usize, usize) {
    let words = (first.0 as usize % SECTION_BLOCKS + count as usize).div_ceil(64);
    (words, words.div_ceil(64))
}

/// The blocks of one region. Under its lock.
pub(in crate::page_alloc) struct Pool {
    /// The block of bit 0, a multiple of 512.
    origin: u32,
    /// The region: its first block and how many.
    first: BlockNumber,
    count: u32,
    /// One bit a block: 1 taken or not memory.
    taken: BootSlice<AtomicU64>,
    /// One bit a word of `taken`: 1 when the word is all ones.
    full: BootSlice<AtomicU64>,
    /// One bit a block: 1 when a free block is not known to be zero.
    stale: BootSlice<AtomicU64>,
    /// Free blocks.
    pub(in crate::page_alloc) free: u32,
    /// Free blocks that are known to be zero.
    pub(in crate::page_alloc) zeroed: u32,
    /// Every word below is full: searches start here.
    hint: usize,
    /// Blocks that are collected instead of freed, and how many were.
    isolated: Range<u32>,
    pub(in crate::page_alloc) collected: u32,
}

impl Pool {
    /// The pool of `count` blocks from `first`, all free, and known to be zero if `zeroed`. The tables are
    /// zeroes, with the sizes that [`pool_words`] says.
    pub(in crate::page_alloc) fn new(
        first: BlockNumber,
        count: u32,
        [taken, full, stale]: [BootSlice<AtomicU64>; 3],
        zeroed: bool,
    ) -> Self {
        let origin = first.0 - first.0 % SECTION_BLOCKS as u32;
        if !zeroed {
            stale.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
        let mut pool = Self {
            origin,
            first,
            count,
            taken,
            full,
            stale,
            free: count,
            zeroed: if zeroed { count } else { 0 },
            hint: 0,
            isolated: 0..0,
            collected: 0,
        };
        let (from, to) = ((first.0 - origin) as usize, (first.0 - origin + count) as usize);
        pool.take_all(0, from);
        pool.take_all(to, taken.len() * 64 - to);
        for word in taken.len()..full.len() * 64 {
            pool.set_full(word, true);
        }
        pool
    }

    /// Takes the lowest run of free blocks that starts at a multiple of `align` blocks, a power of two;
    /// returns whether all of it is known to be zero. Prefers zeroed runs if they are wanted, and for a
    /// single block one nearby with the wanted contents.
    pub(in crate::page_alloc) fn take(
        &mut self,
        blocks: u32,
        align: u32,
        wanted: Contents,
    ) -> Option<(BlockNumber, bool)> {
        if self.free < blocks {
            return None;
        }
        self.hint = self.bits().next_with_room(self.hint)?;
        let bit = if blocks == 1 && align == 1 {
            self.find_one(wanted, |_| false)?
        } else {
            let run = Run { blocks: blocks as usize, align: align as usize, origin: self.origin as usize };
            let known = (wanted == Contents::Zeroed && self.zeroed >= blocks).then(|| self.zeroed_bits());
            let known = known.and_then(|bits| bits.find_run(self.hint, run).0);
            known.or_else(|| self.bits().find_run(self.hint, run).0)?
        };
        Some((BlockNumber(self.origin + bit as u32), self.take_bits(bit, blocks)))
    }

    /// Takes a block as [`Self::take`] does, but not one of an area that the caller avoids. It may miss one that
    /// is not near.
    pub(in crate::page_alloc) fn take_outside(
        &mut self,
        wanted: Contents,
        avoids: impl Fn(BlockNumber) -> bool,
    ) -> Option<(BlockNumber, bool)> {
        self.hint = self.bits().next_with_room(self.hint)?;
        let block = |word: usize| BlockNumber(self.origin + word as u32 * 64);
        let bit = self.find_one(wanted, |word| avoids(block(word)))?;
        Some((BlockNumber(self.origin + bit as u32), self.take_bits(bit, 1)))
    }

    /// Takes the lowest free block of an area, if possible one with the wanted contents.
    pub(in crate::page_alloc) fn take_among(
        &mut self,
        area: &Range<u32>,
        wanted: Contents,
    ) -> Option<(BlockNumber, bool)> {
        let words = area.start.max(self.origin) - self.origin..area.end.max(self.origin) - self.origin;
        let words = words.start as usize / 64..(words.end as usize / 64).min(self.taken.len());
        let unlike = if wanted == Contents::Zeroed { u64::MAX } else { 0 };
        let free = |word: usize| (word, !self.word(word));
        let alike =
            |word: usize| (word, !self.word(word) & (self.stale[word].load(Ordering::Relaxed) ^ unlike));
        let (word, bits) = words.clone().map(alike).chain(words.map(free)).find(|&(_, bits)| bits != 0)?;
        let bit = word * 64 + bits.trailing_zeros() as usize;
        Some((BlockNumber(self.origin + bit as u32), self.take_bits(bit, 1)))
    }

    /// Takes this block if it is a free one of the region, and returns whether it is known to be zero.
    pub(in crate::page_alloc) fn take_exactly(&mut self, block: BlockNumber) -> Option<bool> {
        self.is_free(block).then(|| self.take_bits((block.0 - self.origin) as usize, 1))
    }

    /// Takes this block if it was collected for the range that is isolated, and returns whether it did. The
    /// range is not whole then.
    pub(in crate::page_alloc) fn take_collected(&mut self, memmap: &MemMap, block: BlockNumber) -> bool {
        let taken =
            self.isolated.contains(&block.0) && memmap.block(block).next.load(Ordering::Relaxed) == COLLECTED;
        if taken {
            memmap.block(block).next.store(0, Ordering::Relaxed);
            self.collected -= 1;
        }
        taken
    }

    /// Takes the lowest free block that is not known to be zero.
    pub(in crate::page_alloc) fn take_stale(&mut self) -> Option<BlockNumber> {
        if self.zeroed == self.free {
            return None;
        }
        let mut word = self.bits().next_with_room(self.hint)?;
        loop {
            let found = !self.word(word) & self.stale[word].load(Ordering::Relaxed);
            if found != 0 {
                let bit = word * 64 + found.trailing_zeros() as usize;
                self.take_bits(bit, 1);
                return Some(BlockNumber(self.origin + bit as u32));
            }
            word = self.bits().next_with_room(word + 1)?;
        }
    }

    /// The lowest free block with the wanted contents, if one is near the hint; else the lowest. Passes over
    /// words of areas that the caller avoids; `None` if all that are near are such.
    fn find_one(&self, wanted: Contents, avoids: impl Fn(usize) -> bool) -> Option<usize> {
        let lowest = |word: usize, bits: u64| word * 64 + bits.trailing_zeros() as usize;
        let mut any = None;
        let unlike = if wanted == Contents::Zeroed { u64::MAX } else { 0 };
        let mut next = Some(self.hint);
        for _ in 0..POOL_WORDS_LOOKED_AT {
            let Some(word) = next else { break };
            if avoids(word) {
                next = self.bits().next_with_room((word / AREA_WORDS + 1) * AREA_WORDS);
                continue;
            }
            any = any.or(Some(lowest(word, !self.word(word))));
            if self.zeroed == 0 || self.zeroed == self.free {
                break;
            }
            let found = !self.word(word) & (self.stale[word].load(Ordering::Relaxed) ^ unlike);
            if found != 0 {
                return Some(lowest(word, found));
            }
            next = self.bits().next_with_room(word + 1);
        }
        any
    }

    /// Marks blocks taken; returns whether all of them are known to be zero.
    fn take_bits(&mut self, bit: usize, blocks: u32) -> bool {
        let mut stale = 0;
        for (word, mask) in masks(bit, blocks as usize) {
            self.set_taken(word, self.word(word) | mask);
            stale += (self.stale[word].load(Ordering::Relaxed) & mask).count_ones();
        }
        self.free -= blocks;
        self.zeroed -= blocks - stale;
        stale == 0
    }

    /// Takes exactly these free blocks, for metadata.
    pub(in crate::page_alloc) fn reserve(&mut self, first: BlockNumber, blocks: u32) {
        self.take_bits((first.0 - self.origin) as usize, blocks);
    }

    /// Whether so few blocks are free that requests should use partly used ones first, wherever they are.
    pub(in crate::page_alloc) fn is_short(&self) -> bool {
        self.free <= self.count / WHOLE_BLOCKS_SHORT
    }

    /// Frees a run of blocks, all or none known to be zero. Isolated ones are collected.
    pub(in crate::page_alloc) fn put(
        &mut self,
        memmap: &MemMap,
        first: BlockNumber,
        blocks: u32,
        zeroed: bool,
    ) {
        let (from, to) = (self.isolated.start.max(first.0), self.isolated.end.min(first.0 + blocks));
        if from >= to {
            return self.put_run(first, blocks, zeroed);
        }
        (from..to).for_each(|number| self.collect(memmap, BlockNumber(number), zeroed));
        self.put_run(first, from - first.0, zeroed);
        self.put_run(BlockNumber(to), first.0 + blocks - to, zeroed);
    }

    /// Marks a block as collected, known to be zero or not.
    fn collect(&mut self, memmap: &MemMap, number: BlockNumber, zeroed: bool) {
        let bit = (number.0 - self.origin) as usize;
        let others = self.stale[bit / 64].load(Ordering::Relaxed) & !(1 << (bit % 64));
        self.stale[bit / 64].store(others | u64::from(!zeroed) << (bit % 64), Ordering::Relaxed);
        memmap.block(number).next.store(COLLECTED, Ordering::Relaxed);
        self.collected += 1;
    }

    /// Isolates blocks of the region from `first` on, or more of them. Free ones are collected at once, and stay
    /// known to be zero.
    pub(in crate::page_alloc) fn isolate(&mut self, memmap: &MemMap, first: BlockNumber, more: Range<u32>) {
        if more.start == first.0 {
            self.collected = 0;
        }
        self.isolated = first.0..more.end;
        for number in more {
            let bit = (number - self.origin) as usize;
            if !self.is_taken(bit) {
                self.take_bits(bit, 1);
                memmap.block(BlockNumber(number)).next.store(COLLECTED, Ordering::Relaxed);
                self.collected += 1;
            }
        }
    }

    /// Ends the isolation if all blocks were collected. They are the caller's then, and marked as collected.
    pub(in crate::page_alloc) fn take_isolated(&mut self) -> bool {
        let all = self.collected as usize == self.isolated.len();
        if all {
            self.isolated = 0..0;
        }
        all
    }

    /// Ends the isolation of the first blocks of the range: those that were collected become free.
    pub(in crate::page_alloc) fn give_back(&mut self, memmap: &MemMap, blocks: Range<u32>) {
        debug_assert_eq!(self.isolated.start, blocks.start);
        self.isolated.start = blocks.end;
        for number in blocks.map(BlockNumber) {
            let next = &memmap.block(number).next;
            if next.load(Ordering::Relaxed) == COLLECTED {
                next.store(0, Ordering::Relaxed);
                self.collected -= 1;
                self.put_run(number, 1, self.was_zero(number));
            }
        }
    }

    fn put_run(&mut self, first: BlockNumber, blocks: u32, zeroed: bool) {
        if blocks == 0 {
            return;
        }
        let bit = (first.0 - self.origin) as usize;
        debug_assert!((bit..bit + blocks as usize).all(|bit| self.is_taken(bit)));
        for (word, mask) in masks(bit, blocks as usize) {
            let stale = self.stale[word].load(Ordering::Relaxed);
            self.stale[word].store(if zeroed { stale & !mask } else { stale | mask }, Ordering::Relaxed);
            self.set_taken(word, self.word(word) & !mask);
        }
        self.zeroed += if zeroed { blocks } else { 0 };
        self.free += blocks;
        self.hint = self.hint.min(bit / 64);
    }

    /// Whether a block was known to be zero when it was taken, or is.
    pub(in crate::page_alloc) fn was_zero(&self, block: BlockNumber) -> bool {
        let bit = (block.0 - self.origin) as usize;
        self.stale[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 0
    }

    pub(in crate::page_alloc) fn spans(&self, block: BlockNumber) -> bool {
        block.0 >= self.first.0 && block.0 - self.first.0 < self.count
    }

    pub(in crate::page_alloc) fn region(&self) -> (BlockNumber, u32) {
        (self.first, self.count)
    }

    /// How many blocks there are from `block`, one of the region's, to the region's end.
    pub(in crate::page_alloc) fn blocks_from(&self, block: BlockNumber) -> u32 {
        self.first.0 + self.count - block.0
    }

    /// Free blocks by the bits; for `validate`.
    pub(in crate::page_alloc) fn count_free(&self) -> u32 {
        debug_assert!(self.bits().next_with_room(0).is_none_or(|word| word >= self.hint));
        self.taken.iter().map(|word| word.load(Ordering::Relaxed).count_zeros()).sum()
    }

    /// Free blocks known to be zero by the bits; for `validate`.
    pub(in crate::page_alloc) fn zeroed_blocks(&self) -> impl Iterator<Item = BlockNumber> + '_ {
        let known = |&bit: &usize| {
            let word = self.word(bit / 64) | self.stale[bit / 64].load(Ordering::Relaxed);
            word >> (bit % 64) & 1 == 0
        };
        (0..self.taken.len() * 64).filter(known).map(|bit| BlockNumber(self.origin + bit as u32))
    }

    /// Whether the bit of a block says that it is free; for `validate`.
    pub(in crate::page_alloc) fn is_free(&self, block: BlockNumber) -> bool {
        self.spans(block) && !self.is_taken((block.0 - self.origin) as usize)
    }

    fn is_taken(&self, bit: usize) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    fn word(&self, word: usize) -> u64 {
        self.taken[word].load(Ordering::Relaxed)
    }

    fn bits(&self) -> PoolBits<'_> {
        PoolBits { taken: &self.taken, full: &self.full, stale: &[] }
    }

    /// The bits for searches that accept only blocks known to be zero.
    fn zeroed_bits(&self) -> PoolBits<'_> {
        PoolBits { stale: &self.stale, ..self.bits() }
    }

    fn take_all(&mut self, from: usize, count: usize) {
        for (word, mask) in masks(from, count) {
            self.set_taken(word, self.word(word) | mask);
        }
    }

    fn set_taken(&mut self, word: usize, taken: u64) {
        self.taken[word].store(taken, Ordering::Relaxed);
        self.set_full(word, taken == u64::MAX);
    }

    fn set_full(&mut self, word: usize, full: bool) {
        let summary = &self.full[word / 64];
        let bits = summary.load(Ordering::Relaxed) & !(1 << (word % 64));
        summary.store(bits | u64::from(full) << (word % 64), Ordering::Relaxed);
    }
}

/// The words that hold `count` bits from bit `from`, and a mask of these bits in each.
fn masks(from: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = from + count;
    (from / 64..end.div_ceil(64)).map(move |word| {
        let (low, high) = (from.saturating_sub(word * 64), (end - word * 64).min(64));
        (word, u64::MAX << low & u64::MAX >> (64 - high))
    })
}
