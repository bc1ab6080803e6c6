//! Counts the leaf of a single page, which most faults map.

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::memmap::{Block, BlockState, FrameMask, FrameState};
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::partial_free::{is_single, split_remainders};
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::counter::{CountError, Counter};
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Counts the first leaf of a frame that was just allocated by itself, and sets its origin.
    ///
    /// # Errors
    /// [`CountError::Prepare`]: first its origin must be set, or its block's counts prepared.
    #[inline(always)]
    pub(crate) fn map_new(&self, frame: Frame, origin: Origin) -> Result<(), CountError> {
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        let Some(columns) = block.columns() else { return self.map_new_slow(frame, origin) };
        if !columns.set_origin(index, Order::FRAME, origin.0) {
            return Err(CountError::Prepare { done: 0, at: frame });
        }
        block.lock(self.platform());
        let counted = !block.is_wide();
        if counted {
            columns.count_first(index);
        }
        block.unlock(self.platform());
        if counted { Ok(()) } else { self.map_new_slow(frame, origin) }
    }

    #[cold]
    #[inline(never)]
    fn map_new_slow(&self, frame: Frame, origin: Origin) -> Result<(), CountError> {
        if !self.frames().set_origin(frame, Order::FRAME, origin) {
            return Err(CountError::Prepare { done: 0, at: frame });
        }
        self.counter().map(FrameRange::new(frame, 1))
    }

    /// Counts one more leaf of one frame of a pool's page, as pieces arrive one by one. Returns whether it
    /// could; a [`Counter`] counts all others.
    #[inline]
    pub(crate) fn map_piece(&self, frame: Frame) -> bool {
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        if block.state() != BlockState::FolioTail || !self.frames().scheme.is_dense() {
            return false;
        }
        block.lock(self.platform());
        let counted = block.add_piece(self.platform(), index, || self.counts_in_record(frame, block));
        if counted {
            FrameState::UNKNOWN.put(block.folio_state_cell());
        }
        block.unlock(self.platform());
        counted
    }

    /// Whether one 4 KiB leaf maps the frame, and neither another leaf nor a hold refers to it.
    #[inline]
    pub(crate) fn is_mapped_by_one(&self, frame: Frame) -> bool {
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        if block.columns().is_none() {
            return self.mapcount(frame) == 1 && !self.frames().is_held(frame);
        }
        block.lock(self.platform());
        // Leaves of 2 MiB count in the lanes of a block in small pieces.
        let lanes = block.piece_lanes(self.platform());
        let one = lanes.is_some_and(|lanes| lanes.get(index) == 1) && !block.held.contains(index);
        block.unlock(self.platform());
        one
    }

    /// Counts down one 4 KiB leaf of a frame, by itself, as
    /// [`Counter::unmap`](super::counter::Counter::unmap) does.
    ///
    /// # Panics
    /// As [`Counter::unmap`](super::counter::Counter::unmap).
    ///
    /// # Safety
    /// As for [`Counter::unmap`](super::counter::Counter::unmap).
    #[inline(always)]
    pub(crate) unsafe fn unmap_page(&self, frame: Frame) {
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        if block.columns().is_none() {
            // SAFETY: invariants 1 and 5: by this function's contract.
            unsafe { self.counter().unmap(FrameRange::new(frame, 1)) };
            return;
        }
        block.lock(self.platform());
        let lanes = block.piece_lanes(self.platform());
        match lanes.map(|lanes| lanes.decrement_one(index)) {
            Some(Ok(true)) if !block.held.contains(index) => self.free_one(frame.block(), block, index),
            Some(Ok(_)) => block.unlock(self.platform()),
            _ => {
                block.unlock(self.platform());
                panic_underflow(frame, 1);
            }
        }
    }

    /// Frees one frame of a block in small pieces, neither mapped nor held, and gives the block's lock back.
    #[inline(never)]
    pub(super) fn free_one(&self, number: BlockNumber, block: &Block, index: usize) {
        if !is_single(block, index) {
            split_remainders(block, FrameMask::run(index, 1));
        }
        self.frames().note_freed(FrameRange::new(number.first_frame().add(index as u64), 1));
        self.store().store_put_one(number, block, index, Order::FRAME);
    }
}

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Counts down one leaf of one frame of a block in small pieces, and frees the frame. `None` for other blocks.
    #[inline]
    pub(super) fn unmap_one(&mut self, frame: Frame) -> Option<u64> {
        let unused = self.count_one_down(frame)?;
        if unused {
            self.freed.insert(frame.index_in_block());
            self.freed_count += 1;
        }
        Some(unused.into())
    }

    /// Counts down one leaf of one frame of a block in small pieces. Returns whether the frame is neither mapped
    /// nor held any more; `None` for other blocks.
    #[inline(always)]
    pub(super) fn count_one_down(&mut self, frame: Frame) -> Option<bool> {
        let (block, index) = (self.enter(frame.block()), frame.index_in_block());
        let lanes = block.piece_lanes(self.counts.platform())?;
        let Ok(zero) = lanes.decrement_one(index) else { self.panic_underflow(frame, 1) };
        Some(zero && !block.held.contains(index))
    }
}

/// Ends a count that would fall below zero. No lock is held.
#[cold]
#[inline(never)]
pub(super) fn panic_underflow(frame: Frame, leaves: usize) -> ! {
    panic!("{frame:?}, {leaves} leaves: a frame was unmapped more often than mapped (invariant 5)");
}
