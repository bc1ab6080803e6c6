//! Sorts folios by block on their way into the store, so that each block is locked once for all of them.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::arch::expect_changes;
use crate::limits::PCP_BATCH;
use crate::memmap::{Block, FrameMask, FrameState};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::sorting::{BlockWords, SortEntry, Sorting};
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Store<'_, P> {
    /// Adds a folio without an owner, which the store still counts as used.
    #[inline(always)]
    pub(in crate::page_alloc) fn sort_in(&self, sorting: &mut Sorting<'_>, frame: Frame, order: Order) {
        if order >= Order::BLOCK || sorting.entries.is_empty() {
            sorting.visited += 1;
            return self.put_unsorted(frame, order);
        }
        let (at, number) = (sorting.entry_of(frame.block().0), frame.block());
        let entry = &sorting.entries[at];
        if entry.is_of(number) {
            return entry.add(frame.index_in_block(), order);
        }
        self.start_entry(sorting, entry, at, number);
        entry.set_only(frame.index_in_block(), order);
    }

    /// As [`Self::sort_in`], and a folio that is known to be zero stays so: for drains that no free waits for, since it
    /// reads the state of each folio.
    pub(in crate::page_alloc) fn sort_in_marked(
        &self,
        sorting: &mut Sorting<'_>,
        frame: Frame,
        order: Order,
    ) {
        let block = self.frames.memmap.block(frame.block());
        if order < Order::BLOCK && FrameState::of(self.frames.state_cell(block, frame)).is_zeroed() {
            sorting.visited += 1;
            block.lock(self.frames.platform);
            return self.put_zeroed(frame.block(), block, frame.index_in_block(), order);
        }
        self.sort_in(sorting, frame, order);
    }

    #[inline(never)]
    fn put_unsorted(&self, frame: Frame, order: Order) {
        if order >= Order::BLOCK { self.put_whole(frame.block(), order) } else { self.put_one(frame, order) }
    }

    /// The bits of a block's frames that are being sorted.
    #[inline(always)]
    pub(in crate::page_alloc) fn sorted_words<'e>(
        &self,
        sorting: &mut Sorting<'e>,
        number: BlockNumber,
    ) -> &'e BlockWords {
        let (at, entries) = (sorting.entry_of(number.0), sorting.entries);
        let entry = &entries[at];
        if !entry.is_of(number) {
            self.start_words(sorting, entry, at, number);
        }
        entry.words()
    }

    #[inline(never)]
    fn start_words(&self, sorting: &mut Sorting<'_>, entry: &SortEntry, at: usize, number: BlockNumber) {
        self.start_entry(sorting, entry, at, number);
    }

    /// Starts the entry with this index for another block.
    #[inline(always)]
    fn start_entry(&self, sorting: &mut Sorting<'_>, entry: &SortEntry, at: usize, number: BlockNumber) {
        if !entry.is_free() {
            self.make_way(sorting, at);
        }
        // In fragmented memory each folio is of another block, whose record is in no near cache. Of the last line, which
        // says what is held, a free to the store needs nothing.
        expect_changes(core::ptr::from_ref(self.frames.memmap.block(number)).cast(), Block::FREED_BYTES);
        sorting.visited += 1;
        entry.start(number);
        sorting.pending |= 1 << at;
    }

    /// Puts the frames of another block with the same entry into the store.
    #[cold]
    #[inline(never)]
    fn make_way(&self, sorting: &mut Sorting<'_>, at: usize) {
        self.put_entry(sorting, at);
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

    /// Puts a pending entry's frames into the store.
    #[inline(always)]
    fn put_entry(&self, sorting: &mut Sorting<'_>, at: usize) {
        sorting.pending &= !(1 << at);
        let entry = &sorting.entries[at];
        let number = entry.end();
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let (zone, count) = match entry.only() {
            Some((index, order)) => {
                entry.drop_only();
                self.store_one(number, block, index, order)
            }
            None => self.store_sorted(number, block, entry),
        };
        if sorting.stored.zone != zone {
            self.count_put(sorting);
            sorting.stored.zone = zone;
        }
        sorting.stored.frames += i64::from(count);
        sorting.stored.locks += 1;
        // Other CPUs may miss no more than what a list moves at once.
        if sorting.stored.frames >= PCP_BATCH as i64 {
            self.count_put(sorting);
        }
    }

    #[inline(never)]
    fn store_sorted(&self, number: BlockNumber, block: &Block, entry: &SortEntry) -> (usize, u16) {
        self.store_frames(number, block, take(&entry.frames))
    }
}

/// Takes the bits out of the words.
fn take(words: &BlockWords) -> FrameMask {
    let frames = FrameMask(core::array::from_fn(|word| words[word].load(Ordering::Relaxed)));
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    frames
}
