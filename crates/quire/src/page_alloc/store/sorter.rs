//! Sorts folios by block on their way into the store, so that each block is locked once for all of them.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::arch::expect_changes;
use crate::memmap::{Block, FrameMask};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::sorting::{BlockWords, Sorting, add_folio};
use crate::platform::FramePlatform;

impl<P: FramePlatform> Store<'_, P> {
    /// Adds a folio without an owner, which the store still counts as used.
    #[inline]
    pub(in crate::page_alloc) fn sort_in(&self, sorting: &mut Sorting<'_>, frame: Frame, order: Order) {
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

    /// The bits of a block's frames that are being sorted.
    #[inline]
    pub(in crate::page_alloc) fn sorted_words<'e>(
        &self,
        sorting: &mut Sorting<'e>,
        number: BlockNumber,
    ) -> &'e BlockWords {
        let (at, entries) = (sorting.entry_of(number.0), sorting.entries);
        if sorting.pending >> at & 1 == 0 || entries[at].block.load(Ordering::Relaxed) != number.0 {
            self.start_block(sorting, at, number.0);
        }
        &entries[at].frames
    }

    #[cold]
    fn start_block(&self, sorting: &mut Sorting<'_>, at: usize, block: u32) {
        self.put_entry(sorting, at);
        // In fragmented memory each folio is of another block, whose record is in no near cache.
        expect_changes(
            core::ptr::from_ref(self.frames.memmap.block(BlockNumber(block))).cast(),
            size_of::<Block>(),
        );
        sorting.visited += 1;
        sorting.entries[at].block.store(block, Ordering::Relaxed);
        sorting.pending |= 1 << at;
    }

    /// Puts everything that was added into the store.
    pub(in crate::page_alloc) fn sort_out(&self, sorting: &mut Sorting<'_>) {
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
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        self.store_put(number, block, frames);
    }
}
