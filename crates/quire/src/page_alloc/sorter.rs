//! Sorts folios by block on their way into the store, so that each block's lock is taken once for all of them, in
//! whatever order they come.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::PageAllocator;
use crate::addr::{BlockNumber, Frame, Order};
use crate::limits::{BLOCK_FRAMES, SORTER_BLOCKS};
use crate::memmap::FrameMask;
use crate::platform::FramePlatform;

/// A bit for each frame of a block.
pub(super) type BlockWords = [AtomicU64; BLOCK_FRAMES / 64];

/// One block and its frames that are on their way.
pub(super) struct SortEntry {
    block: AtomicU32,
    frames: BlockWords,
}

/// Sorting under way: entries that belong to the running code alone, and which of them hold frames.
pub(super) struct Sorting<'a> {
    entries: &'a [SortEntry],
    pending: u64,
    visited: usize,
}

const _: () = assert!(SORTER_BLOCKS == 64);

impl<'a> Sorting<'a> {
    /// Starts with entries of which none holds a frame. Without any, folios go to the store one by one.
    pub(super) fn new(entries: &'a [SortEntry]) -> Self {
        debug_assert!(
            entries.is_empty() || entries.len() <= SORTER_BLOCKS && entries.len().is_power_of_two()
        );
        Self { entries, pending: 0, visited: 0 }
    }

    /// Blocks to which folios have gone or will go, those twice to which they go twice.
    pub(super) fn visited(&self) -> usize {
        self.visited
    }

    /// Where a block's frames are gathered.
    #[inline]
    fn entry_of(&self, block: u32) -> usize {
        block as usize & (self.entries.len() - 1)
    }

    /// Whether the frame is on its way already.
    pub(super) fn holds(&self, frame: Frame) -> bool {
        let at = self.entry_of(frame.block().0);
        let (entry, index) = (&self.entries[at], frame.index_in_block());
        self.pending >> at & 1 == 1
            && entry.block.load(Ordering::Relaxed) == frame.block().0
            && entry.frames[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Adds a folio. It is in use as far as the store knows, and nobody's.
    #[inline]
    pub(super) fn sort_in(&self, sorting: &mut Sorting<'_>, frame: Frame, order: Order) {
        if order >= Order::BLOCK {
            sorting.visited += 1;
            return self.put_whole(frame.block(), order);
        }
        if sorting.entries.is_empty() {
            sorting.visited += 1;
            return self.put_one(frame, order);
        }
        add_folio(self.sorted_words(sorting, frame.block()), frame.index_in_block(), order);
    }

    /// The map of a block's frames that are on their way.
    #[inline]
    pub(super) fn sorted_words<'e>(&self, sorting: &mut Sorting<'e>, number: BlockNumber) -> &'e BlockWords {
        let (at, entries) = (sorting.entry_of(number.0), sorting.entries);
        if sorting.pending >> at & 1 == 0 || entries[at].block.load(Ordering::Relaxed) != number.0 {
            self.start_block(sorting, at, number.0);
        }
        &entries[at].frames
    }

    #[cold]
    fn start_block(&self, sorting: &mut Sorting<'_>, at: usize, block: u32) {
        self.put_entry(sorting, at);
        sorting.visited += 1;
        sorting.entries[at].block.store(block, Ordering::Relaxed);
        sorting.pending |= 1 << at;
    }

    /// Gives everything that was added to the store.
    pub(super) fn sort_out(&self, sorting: &mut Sorting<'_>) {
        while sorting.pending != 0 {
            self.put_entry(sorting, sorting.pending.trailing_zeros() as usize);
        }
    }

    fn put_entry(&self, sorting: &mut Sorting<'_>, at: usize) {
        if sorting.pending >> at & 1 == 0 {
            return;
        }
        sorting.pending &= !(1 << at);
        let entry = &sorting.entries[at];
        let frames = FrameMask(core::array::from_fn(|word| entry.frames[word].load(Ordering::Relaxed)));
        entry.frames.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let number = BlockNumber(entry.block.load(Ordering::Relaxed));
        let block = self.memmap.block(number);
        block.lock(self.platform);
        self.store_put(number, block, frames);
    }
}

/// Adds the frames of a folio below a block's size.
#[inline(always)]
pub(super) fn add_folio(words: &BlockWords, index: usize, order: Order) {
    if order.get() < 6 {
        // A folio of up to 32 frames lies in one word.
        let word = &words[index / 64];
        let bits = ((1u64 << order.frames()) - 1) << (index % 64);
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    } else {
        let words = &words[index / 64..][..order.frames() as usize / 64];
        words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
}
