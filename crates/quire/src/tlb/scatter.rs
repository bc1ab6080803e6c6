//! Counts down detached tables with scattered entries block by block instead of entry by entry.
//!
//! After the flush only the drain uses the tables. So they hold their own entries while these are sorted:
//! first packed to frame numbers, then sorted by block, in place. Then each block's lock is taken once.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::release::Release;
use super::words::{Table, words};
use crate::addr::{BlockNumber, Frame};
use crate::arch::Level;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER, SCATTER_TABLES, TABLE_ENTRIES};
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;

/// Bits by which one pass sorts, at most.
const DIGIT: u32 = 9;
/// The base-two logarithm of the number of blocks that need no sorting.
const FEW_BITS: u32 = 4;
/// Places at which a table is examined to find whether its entries are scattered.
const SAMPLES: usize = 8;
/// A run shorter than this costs more on its own than its frames cost in order.
pub(super) const SHORT: usize = 8;
/// A table with fewer leaves is never sorted.
const MANY: usize = 64;

type Words<'a> = &'a [AtomicU64; TABLE_ENTRIES];

/// Frame numbers, stored in the words of tables one after the other.
pub(super) struct Scattered<'a> {
    tables: [Option<(Frame, Words<'a>)>; SCATTER_TABLES],
    table_count: usize,
    frame_count: usize,
}

/// Whether a lowest-level table that only the caller changes has many leaves, few of them in long runs.
pub(super) fn is_scattered(table: Table<'_>, population: usize) -> bool {
    let goes_on = |at: &usize| {
        let first = table.load_private(*at);
        first.is_present() && table.load_private(at + SHORT - 1).continues(first, SHORT as u64 - 1)
    };
    table.level() == Level::PTE
        && population >= MANY
        && (0..TABLE_ENTRIES).step_by(TABLE_ENTRIES / SAMPLES).filter(goes_on).count() < SAMPLES / 2
}

impl<'a> Scattered<'a> {
    pub(super) const fn new() -> Self {
        Self { tables: [None; SCATTER_TABLES], table_count: 0, frame_count: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.table_count == self.tables.len()
    }

    /// Removes and returns a table, and forgets all frames.
    pub(super) fn pop_table(&mut self) -> Option<Frame> {
        self.frame_count = 0;
        self.table_count = self.table_count.checked_sub(1)?;
        self.tables[self.table_count].map(|(frame, _)| frame)
    }

    /// Adds a table as memory for frame numbers. The caller reads an entry before its word is overwritten.
    pub(super) fn add_table<P: TablePlatform>(&mut self, platform: &'a P, table: Frame) {
        self.tables[self.table_count] = Some((table, words(platform, table)));
        self.table_count += 1;
    }

    /// Records a frame. There is room: each comes from an entry of a table that was added.
    #[inline]
    pub(super) fn push(&mut self, frame: Frame) {
        self.word(self.frame_count).store(frame.0, Ordering::Relaxed);
        self.frame_count += 1;
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        match &self.tables[at / TABLE_ENTRIES] {
            Some((_, words)) => &words[at % TABLE_ENTRIES],
            None => unreachable!("a frame was noted without room"),
        }
    }

    #[inline(always)]
    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Counts down all recorded frames by block; repeatedly, if a frame of the block was recorded repeatedly.
    pub(super) fn release<P: TablePlatform>(&self, release: &mut Release<'_, '_, P>) {
        release.unlock();
        let (all, any) = (0..self.frame_count)
            .map(|at| self.get(at))
            .fold((u64::MAX, 0), |(all, any), frame| (all & frame, any | frame));
        let differ = if self.frame_count == 0 { 0 } else { all ^ any };
        let bits = (u64::BITS - differ.leading_zeros()).saturating_sub(u32::from(BLOCK_ORDER));
        self.sort(0..self.frame_count, bits, release);
    }

    /// Sorts frames whose block numbers differ in the lowest `bits` bits alone, and counts them down.
    /// Recurses once per digit of a block number. Only one array of a kibibyte stays on the stack meanwhile.
    fn sort<P: TablePlatform>(&self, part: Range<usize>, bits: u32, release: &mut Release<'_, '_, P>) {
        if bits <= FEW_BITS || part.len() <= 1 {
            return self.release_few(part, release);
        }
        let width = (bits - FEW_BITS).min(DIGIT);
        let mut ends = [0u16; 1 << DIGIT];
        let shift = u32::from(BLOCK_ORDER) + bits - width;
        let digit = |frame: u64| (frame >> shift) as usize & ((1 << width) - 1);
        self.partition(part.clone(), &mut ends[..1 << width], digit, release);
        let mut start = 0;
        for &end in &ends[..1 << width] {
            self.sort(part.start + start..part.start + usize::from(end), bits - width, release);
            start = usize::from(end);
        }
    }

    /// Sorts frames by one digit. Writes to `ends`, for each digit, where its frames end, from the start of
    /// the part.
    #[inline(never)]
    fn partition<P: TablePlatform>(
        &self,
        part: Range<usize>,
        ends: &mut [u16],
        digit: impl Fn(u64) -> usize + Copy,
        release: &mut Release<'_, '_, P>,
    ) {
        part.clone().for_each(|at| ends[digit(self.get(at))] += 1);
        release.spend(0, part.len() as u64);
        // Up to where each digit's frames are in place.
        let mut done = [0u16; 1 << DIGIT];
        let mut sum = 0;
        for (end, done) in ends.iter_mut().zip(&mut done) {
            *done = sum;
            sum += *end;
            *end = sum;
        }
        for (bucket, &end) in ends.iter().enumerate() {
            while done[bucket] < end {
                let moved = self.settle(part.start, bucket, &mut done, digit);
                release.spend(0, moved);
            }
        }
    }

    /// Moves the next frame of a bucket to its own bucket, the frame found there to its own, and so on, until
    /// one belongs to the first bucket. Returns how many were moved.
    #[inline(always)]
    fn settle(&self, base: usize, bucket: usize, done: &mut [u16], digit: impl Fn(u64) -> usize) -> u64 {
        let hole = self.word(base + usize::from(done[bucket]));
        let (mut frame, mut moved) = (hole.load(Ordering::Relaxed), 1);
        while digit(frame) != bucket {
            let next = &mut done[digit(frame)];
            let place = self.word(base + usize::from(*next));
            *next += 1;
            let other = place.load(Ordering::Relaxed);
            place.store(frame, Ordering::Relaxed);
            frame = other;
            moved += 1;
        }
        hole.store(frame, Ordering::Relaxed);
        done[bucket] += 1;
        moved
    }

    /// Counts down frames of blocks whose numbers differ in the lowest few bits alone.
    #[inline(never)]
    fn release_few<P: TablePlatform>(&self, part: Range<usize>, release: &mut Release<'_, '_, P>) {
        let Some(first) = part.clone().next() else { return };
        let base = Frame(self.get(first)).block().0 & !((1 << FEW_BITS) - 1);
        let mut masks = [FrameMask::EMPTY; 1 << FEW_BITS];
        for at in part {
            let frame = Frame(self.get(at));
            let (which, index) = ((frame.block().0 - base) as usize, frame.0 as usize % BLOCK_FRAMES);
            let (word, bit) = (&mut masks[which].0[index / 64], 1 << (index % 64));
            if *word & bit != 0 {
                release.each(frame.block(), core::mem::replace(&mut masks[which], FrameMask::EMPTY));
                masks[which].0[index / 64] = bit;
            } else {
                *word |= bit;
            }
        }
        for (number, frames) in (base..).zip(masks).filter(|(_, frames)| !frames.is_empty()) {
            release.each(BlockNumber(number), frames);
        }
    }
}

const _: () = assert!(SCATTER_TABLES * TABLE_ENTRIES <= u16::MAX as usize);
