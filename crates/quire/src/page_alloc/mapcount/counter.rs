//! Counts leaves a run at a time under the block's lock, and frees frames neither mapped nor held.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, PageSize};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, FrameMask, FrameState, LaneError};
use crate::page_alloc::frames::partial_free::split_remainders;
use crate::page_alloc::frames::state::touch;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::blocks::FreedBlocks;
use crate::page_alloc::mapcount::page::panic_underflow;
use crate::page_alloc::request::gfp::Contents;
use crate::page_alloc::store::count_slots::Promises;
use crate::page_alloc::store::slots::CountSlot;
use crate::platform::FramePlatform;

/// Why only a part of a run was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountError {
    /// The first `done` frames were counted; the block of `at` has no counts yet, or they are full. The
    /// caller drops all page-table locks, calls [`MapCounts::prepare_counts`] with `at`, and continues.
    Prepare {
        /// Frames that were counted.
        done: u64,
        /// The first frame that was not.
        at: Frame,
    },
}

/// Changes map counts. It keeps the lock of the last block, so that neighbouring runs share one hold; its
/// drop gives the lock back, and the freed frames to the store.
pub struct Counter<'a, 'p, P: FramePlatform> {
    pub(in crate::page_alloc) counts: &'a MapCounts<'p, P>,
    current: Option<(BlockNumber, &'a Block)>,
    /// Frames of the current block that are neither mapped nor held any more.
    pub(in crate::page_alloc) freed: FrameMask,
    /// How many these are.
    pub(super) freed_count: usize,
    /// The current block's slot, once nothing is counted in it.
    slot: Option<CountSlot>,
    /// Whether promises were released, so that a frame of slots may be free.
    pub(in crate::page_alloc) excess: bool,
    /// Folios of one block that were freed and go to their pool together.
    pub(super) whole: FreedBlocks,
}

impl<'p, P: FramePlatform> MapCounts<'p, P> {
    /// A counter that holds no lock yet.
    #[inline]
    pub fn counter(&self) -> Counter<'_, 'p, P> {
        Counter {
            counts: self,
            current: None,
            freed: FrameMask::EMPTY,
            freed_count: 0,
            slot: None,
            excess: false,
            whole: FreedBlocks::NONE,
        }
    }
}

impl<'a, P: FramePlatform> Counter<'a, '_, P> {
    /// Counts one more 4 KiB leaf for each frame of a run.
    ///
    /// # Errors
    /// [`CountError::Prepare`]; the counter holds no lock then.
    #[inline]
    pub fn map(&mut self, run: FrameRange) -> Result<(), CountError> {
        #[cfg(feature = "published")]
        if self.counts.has_parts_counted_as_published(run) {
            return self.map_as_published(run);
        }
        self.map_densely(run)
    }

    /// As [`Self::map`], with a count for each frame.
    #[inline]
    pub(super) fn map_densely(&mut self, run: FrameRange) -> Result<(), CountError> {
        let mut done = 0;
        for piece in run.by_block() {
            let block = self.enter(piece.start.block());
            let (start, count) = (piece.start.index_in_block(), piece.count as usize);
            let counted = match block.piece_lanes(self.counts.platform()) {
                Some(lanes) => lanes.increment(start, count),
                None => {
                    let all = self.counts;
                    let counts = || all.counts_in_record(piece.start, block);
                    let in_record = || counts().then(|| Promises::new(all.store()));
                    block.add_small(all.platform(), start, count, in_record)
                }
            };
            match counted {
                Ok(fresh) => {
                    // Frames that were mapped before have the state `UNKNOWN` already.
                    if fresh {
                        touch(block, start, count);
                    }
                    done += piece.count;
                }
                Err(LaneError::Full) => {
                    self.unlock_block();
                    return Err(CountError::Prepare { done, at: piece.start });
                }
                Err(LaneError::Underflow) => unreachable!("counting up never reaches below zero"),
            }
            self.count_small(piece.start, block, piece.count as i64);
        }
        Ok(())
    }

    /// Counts down one 4 KiB leaf for each frame of a run, after those leaves were flushed everywhere. Frames
    /// that reach zero and are not held are freed at once; returns how many.
    ///
    /// # Panics
    /// When a frame was not mapped: to go on would free memory in use, as tables and counts disagree
    /// (invariant 5).
    ///
    /// # Safety
    /// [`Self::map`] counted those leaves, of held frames or of a page table that their owner gave them to
    /// (invariants 1 and 5).
    #[inline]
    pub unsafe fn unmap(&mut self, run: FrameRange) -> u64 {
        self.count_down_run(run)
    }

    #[inline]
    pub(in crate::page_alloc) fn count_down_run(&mut self, run: FrameRange) -> u64 {
        #[cfg(feature = "published")]
        if self.counts.has_parts_counted_as_published(run) {
            return self.unmap_as_published(run);
        }
        if run.count == 1
            && let Some(freed) = self.unmap_one(run.start)
        {
            return freed;
        }
        run.by_block().map(|piece| self.unmap_in_block(piece)).sum()
    }

    pub(super) fn unmap_in_block(&mut self, piece: FrameRange) -> u64 {
        let (start, count) = (piece.start.index_in_block(), piece.count as usize);
        let (platform, promises) = (self.counts.platform(), Promises::new(self.counts.store()));
        if count == BLOCK_FRAMES && self.enter(piece.start.block()).remove_table(&promises) {
            self.excess |= promises.excess.get();
            return 0;
        }
        let freed = self.count_down(piece.start, count, |block, zeroed| {
            match block.piece_lanes(self.counts.platform()) {
                Some(lanes) => lanes.decrement(start, count, zeroed),
                None => block.remove_small(platform, &promises, start, count, zeroed),
            }
        });
        self.excess |= promises.excess.get();
        freed
    }

    #[cold]
    pub(super) fn panic_underflow(&mut self, frame: Frame, leaves: usize) -> ! {
        self.unlock_block();
        panic_underflow(frame, leaves);
    }

    /// As [`Self::unmap`], for any frames of one block; panics where that does.
    ///
    /// # Safety
    /// As for [`Self::unmap`].
    pub unsafe fn unmap_each(&mut self, block: BlockNumber, frames: FrameMask) -> u64 {
        let first = block.first_frame();
        #[cfg(feature = "published")]
        if self.counts.is_counted_as_published(first) {
            let run = |(start, count): (usize, usize)| FrameRange::new(first.add(start as u64), count as u64);
            return frames.runs().map(|at| self.unmap_as_published(run(at))).sum();
        }
        let (platform, promises) = (self.counts.platform(), Promises::new(self.counts.store()));
        let freed = self.count_down(first, frames.count(), |block, zeroed| {
            match block.piece_lanes(self.counts.platform()) {
                Some(lanes) => lanes.decrement_each(frames, zeroed),
                None => block.remove_each(platform, &promises, frames, zeroed),
            }
        });
        self.excess |= promises.excess.get();
        freed
    }

    #[inline(always)]
    fn count_down(
        &mut self,
        frame: Frame,
        leaves: usize,
        change: impl FnOnce(&Block, &mut FrameMask) -> Result<(), LaneError>,
    ) -> u64 {
        let block = self.enter(frame.block());
        let mut zeroed = FrameMask::EMPTY;
        if change(block, &mut zeroed).is_err() {
            self.panic_underflow(frame, leaves);
        }
        if block.state() == BlockState::Small {
            return self.add_freed(block, zeroed);
        }
        if zeroed.is_empty() {
            self.count_small(frame, block, -(leaves as i64));
            return 0;
        }
        self.note_unused_slot(block);
        if self.counts.counts_in_record(frame, block) {
            return 0;
        }
        self.count_folio_down(frame, block, leaves as u64, Contents::Unknown)
    }

    /// Counts one more leaf of 2 MiB or 1 GiB that maps the folio at `frame`.
    pub fn map_large(&mut self, frame: Frame, size: PageSize) {
        debug_assert!(size != PageSize::Size4K && frame.is_aligned(size.order()));
        #[cfg(feature = "published")]
        if self.counts.is_counted_as_published(frame) {
            return self.map_large_as_published(frame, size);
        }
        let block = self.enter(frame.block());
        debug_assert!(matches!(block.state(), BlockState::Folio | BlockState::FolioTail));
        let maps = if size == PageSize::Size1G { &block.gigantic_maps } else { &block.large_maps };
        maps.fetch_add(1, Ordering::Relaxed);
        FrameState::UNKNOWN.put(block.folio_state_cell());
        self.count_folio(frame, block, 1);
    }

    /// As [`Self::map_large`], if the frames still are one folio or a part of one; returns whether they are.
    pub(crate) fn try_map_large(&mut self, frame: Frame, size: PageSize) -> bool {
        let block = self.enter(frame.block());
        let whole = matches!(block.state(), BlockState::Folio | BlockState::FolioTail)
            && block.order.load(Ordering::Relaxed) >= size.order().get();
        if whole {
            self.map_large(frame, size);
        }
        whole
    }

    /// Counts down one leaf of 2 MiB or 1 GiB, after it was flushed everywhere; returns how many frames
    /// became free. If it was the last leaf, the folio is freed with these `contents`.
    ///
    /// # Panics
    /// As [`Self::unmap`].
    ///
    /// # Safety
    /// As for [`Self::unmap`].
    pub unsafe fn unmap_large(&mut self, frame: Frame, size: PageSize, contents: Contents) -> u64 {
        #[cfg(feature = "published")]
        if self.counts.is_counted_as_published(frame) {
            return self.unmap_large_as_published(frame, size, contents);
        }
        let block = self.enter(frame.block());
        if block.state() == BlockState::Small {
            return self.unmap_pieces(frame);
        }
        let maps = if size == PageSize::Size1G { &block.gigantic_maps } else { &block.large_maps };
        if maps.load(Ordering::Relaxed) == 0 {
            self.unlock_block();
            panic!("{frame:?}: a folio was unmapped more often than mapped (invariant 5)");
        }
        maps.fetch_sub(1, Ordering::Relaxed);
        // A slot may have been prepared for 4 KiB leaves that were never mapped.
        self.note_unused_slot(block);
        let whole = block.order.load(Ordering::Relaxed) == size.order().get();
        self.count_folio_down(frame, block, 1, if whole { contents } else { Contents::Unknown })
    }

    /// Marks frames that no leaf maps any more as freed, unless they are held; returns how many.
    #[inline]
    pub(in crate::page_alloc) fn add_freed(&mut self, block: &Block, zeroed: FrameMask) -> u64 {
        let freed = zeroed.without(block.held.load());
        if freed.is_empty() {
            return 0;
        }
        let count = freed.count();
        self.freed = self.freed.union(freed);
        self.freed_count += count;
        count as u64
    }

    /// Takes the current block's slot if nothing is counted in it; `unlock_block` gives it back.
    #[inline]
    pub(in crate::page_alloc) fn note_unused_slot(&mut self, block: &Block) {
        if let Some(slot) = block.take_unused_slot(self.counts.platform()) {
            debug_assert!(self.slot.is_none(), "a block has one slot");
            self.slot = Some(CountSlot::of(slot));
        }
    }

    /// Locks a block, after it gave back the lock of the one before.
    #[inline]
    pub(in crate::page_alloc) fn enter(&mut self, number: BlockNumber) -> &'a Block {
        if let Some((current, block)) = self.current
            && current == number
        {
            return block;
        }
        self.unlock_block();
        let block = self.counts.frames().memmap.block(number);
        block.lock(self.counts.platform());
        self.current = Some((number, block));
        block
    }

    /// Gives the current block's lock back, and its freed frames to the store.
    #[inline]
    pub(in crate::page_alloc) fn unlock_block(&mut self) {
        let Some((number, block)) = self.current.take() else { return };
        if self.freed_count > 0 {
            return self.free_and_unlock(number, block);
        }
        block.unlock(self.counts.platform());
        if self.slot.is_some() || self.excess {
            self.give_back_slots();
        }
    }

    #[cold]
    fn give_back_slots(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.counts.store().give_slot(slot);
        }
        if core::mem::take(&mut self.excess) {
            self.counts.store().trim_room();
        }
    }

    fn free_and_unlock(&mut self, number: BlockNumber, block: &Block) {
        let (frames, store) = (self.counts.frames(), self.counts.store());
        let first = number.first_frame();
        let freed = core::mem::take(&mut self.freed);
        if core::mem::take(&mut self.freed_count) == 1
            && let Some(index) = freed.next_set(0)
        {
            return self.counts.free_one(number, block, index);
        }
        split_remainders(block, freed);
        if self.counts.platform().watches_frees() {
            for (start, count) in freed.runs() {
                frames.note_freed(FrameRange::new(first.add(start as u64), count as u64));
            }
        }
        store.store_put(number, block, freed);
    }
}

impl<P: FramePlatform> Drop for Counter<'_, '_, P> {
    fn drop(&mut self) {
        self.unlock_block();
        self.whole.put(self.counts);
    }
}
