//! The data of a sort of folios by block.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::addr::{Frame, Order};
use crate::limits::{BLOCK_FRAMES, SORTER_BLOCKS};

/// A bit for each frame of a block.
pub(in crate::page_alloc) type BlockWords = [AtomicU64; BLOCK_FRAMES / 64];

/// One block, and its frames that are being sorted.
pub(in crate::page_alloc) struct SortEntry {
    pub(in crate::page_alloc) block: AtomicU32,
    pub(in crate::page_alloc) frames: BlockWords,
}

/// A sort under way: entries that belong to the running code alone, and which of them hold frames.
pub(in crate::page_alloc) struct Sorting<'a> {
    pub(in crate::page_alloc) entries: &'a [SortEntry],
    pub(in crate::page_alloc) pending: u64,
    pub(in crate::page_alloc) visited: usize,
}

const _: () = assert!(SORTER_BLOCKS == 64);

impl<'a> Sorting<'a> {
    /// Starts with empty entries. Without any, folios go to the store one by one.
    pub(in crate::page_alloc) fn new(entries: &'a [SortEntry]) -> Self {
        debug_assert!(
            entries.is_empty() || entries.len() <= SORTER_BLOCKS && entries.len().is_power_of_two()
        );
        Self { entries, pending: 0, visited: 0 }
    }

    /// Visits of blocks, made or to be made.
    pub(in crate::page_alloc) fn visited(&self) -> usize {
        self.visited
    }

    /// The index of a block's entry.
    #[inline]
    pub(in crate::page_alloc) fn entry_of(&self, block: u32) -> usize {
        block as usize & (self.entries.len() - 1)
    }

    pub(in crate::page_alloc) fn holds(&self, frame: Frame) -> bool {
        let at = self.entry_of(frame.block().0);
        let (entry, index) = (&self.entries[at], frame.index_in_block());
        self.pending >> at & 1 == 1
            && entry.block.load(Ordering::Relaxed) == frame.block().0
            && entry.frames[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }
}

/// Adds the frames of a folio below a block's size.
#[inline(always)]
pub(in crate::page_alloc) fn add_folio(words: &BlockWords, index: usize, order: Order) {
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
