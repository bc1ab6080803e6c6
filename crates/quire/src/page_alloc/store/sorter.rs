//! Sorts folios by block on their way into the store, so that each block is locked once for all of them.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::arch::expect_changes;
use crate::limits::PCP_BATCH;
use crate::memmap::{Block, FrameMask};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::sorting::{BlockWords, SortEntry, Sorting, add_folio};
use crate::platform::FramePlatform;
use crate::stats::Stat;

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
        let (entry, first) = self.entry_of(sorting, frame.block());
        if first {
            entry.set_only(frame.index_in_block(), order);
        } else {
            add_folio(entry.words(), frame.index_in_block(), order);
        }
    }

    /// The bits of a block's frames that are being sorted.
    #[inline]
    pub(in crate::page_alloc) fn sorted_words<'e>(
        &self,
        sorting: &mut Sorting<'e>,
        number: BlockNumber,
    ) -> &'e BlockWords {
        self.entry_of(sorting, number).0.words()
    }

    /// A block's entry, and whether it has nothing yet.
    #[inline]
    fn entry_of<'e>(&self, sorting: &mut Sorting<'e>, number: BlockNumber) -> (&'e SortEntry, bool) {
        let (at, entries) = (sorting.entry_of(number.0), sorting.entries);
        let first = sorting.pending >> at & 1 == 0 || entries[at].block.load(Ordering::Relaxed) != number.0;
        if first {
            self.start_block(sorting, at, number.0);
        }
        (&entries[at], first)
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
        self.count_put(sorting);
    }

    /// Counts what several blocks got. A change of the zone's number of free frames waits for all stores
    /// before it, so it is not made for each block.
    fn count_put(&self, sorting: &mut Sorting<'_>) {
        let put = core::mem::take(&mut sorting.stored);
        if put.locks > 0 {
            self.frames.count(Stat::BlockLock, put.locks);
            self.zones[put.zone].add_free(put.frames);
        }
    }

    fn put_entry(&self, sorting: &mut Sorting<'_>, at: usize) {
        if sorting.pending >> at & 1 == 0 {
            return;
        }
        sorting.pending &= !(1 << at);
        let entry = &sorting.entries[at];
        let number = BlockNumber(entry.block.load(Ordering::Relaxed));
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let (zone, count) = match entry.only() {
            Some((index, order)) => {
                entry.drop_only();
                self.store_one(number, block, index, order)
            }
            None => self.store_frames(number, block, take(&entry.frames)),
        };
        if sorting.stored.zone != usize::from(zone.number) {
            self.count_put(sorting);
            sorting.stored.zone = zone.number.into();
        }
        sorting.stored.frames += i64::from(count);
        sorting.stored.locks += 1;
        // Other CPUs may miss no more than what a list moves at once.
        if sorting.stored.frames >= PCP_BATCH as i64 {
            self.count_put(sorting);
        }
    }
}

/// Takes the bits out of the words.
fn take(words: &BlockWords) -> FrameMask {
    let frames = FrameMask(core::array::from_fn(|word| words[word].load(Ordering::Relaxed)));
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    frames
}
