//! The state of each folio, which tells a free in one look whether it must check more.

use core::sync::atomic::AtomicU8;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::memmap::{Block, BlockState, FrameState, LIST_BYTES};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::pcp::level::{HUGE, ZoneLists};
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// Changes the state of a block, if it is `from`; whether it was.
    pub(in crate::page_alloc) fn change_state(
        &self,
        number: BlockNumber,
        from: BlockState,
        to: BlockState,
    ) -> bool {
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let turns = block.state() == from;
        if turns {
            block.set_state(to);
        }
        block.unlock(self.platform);
        turns
    }

    /// Tells a checking platform that frames are free, before they can be handed out again.
    #[inline]
    pub(in crate::page_alloc) fn note_freed(&self, frames: FrameRange) {
        self.platform.frames_freed(frames);
    }

    /// Where the list of a folio that needs no check begins, in bytes among the lists of all zones, and the
    /// folio's state. `block` is the record of the frame's block.
    #[inline(always)]
    pub(in crate::page_alloc) fn list_of_untouched<'b>(
        &self,
        block: &'b Block,
        frame: Frame,
        order: Order,
    ) -> Option<(usize, &'b AtomicU8)> {
        let (list_at, state) = match order.get() {
            small @ 0..=8 => {
                // SAFETY: M2: the record is that of the frame's block.
                let state = unsafe { block.state_cell(frame) }?;
                (block.lists_at() + usize::from(small) * (3 * LIST_BYTES), state)
            }
            9 if frame.index_in_block() == 0 => {
                let zone_at = block.lists_at() & !(size_of::<ZoneLists>() - 1);
                (zone_at + HUGE * LIST_BYTES, block.folio_state_cell())
            }
            _ => return None,
        };
        (FrameState::of(state) == FrameState::in_use(order)).then_some((list_at, state))
    }

    /// Marks a folio that leaves a list for its owner. `zeroed` says that it is zero, to an owner that asks.
    #[inline(always)]
    pub(in crate::page_alloc) fn mark_in_use(
        &self,
        frame: Frame,
        state: &AtomicU8,
        order: Order,
        zeroed: bool,
    ) {
        if order == Order::BLOCK
            && let Some(block) = self.memmap.get(frame.block())
        {
            block.set_state(BlockState::Folio);
        }
        FrameState::in_use(order).with_zeroes(zeroed).put(state);
    }

    /// Marks a folio that comes to a list, or goes back to the store, so that freeing it again is refused.
    pub(in crate::page_alloc) fn mark_free(&self, block: &Block, frame: Frame, order: Order, zeroed: bool) {
        FrameState::FREE.with_zeroes(zeroed).put(self.state_cell(block, frame));
        if order >= Order::BLOCK {
            block.set_state(BlockState::Listed);
        }
    }

    #[inline]
    pub(in crate::page_alloc) fn state_cell<'b>(&self, block: &'b Block, frame: Frame) -> &'b AtomicU8 {
        match block.columns() {
            Some(columns) => columns.state_cell(frame.index_in_block()),
            None => block.folio_state_cell(),
        }
    }

    /// Whether the state says that the frame is on a list, on its way back, or free.
    pub(in crate::page_alloc) fn is_marked_free(&self, frame: Frame) -> bool {
        let area = self.memmap.get(frame.block()).and_then(Block::columns);
        area.is_some_and(|columns| columns.state(frame.index_in_block()).is_free())
    }
}
