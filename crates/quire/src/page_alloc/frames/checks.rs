//! Checks that a folio is what its free says: in use, of this order, neither mapped nor held.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::error::FreeError;
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::frames::Frames;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// For a folio below a block's size. Under the block's lock, or as a hint without.
    pub(in crate::page_alloc) fn check_small(
        &self,
        block: &Block,
        frame: Frame,
        order: Order,
    ) -> Result<(), FreeError> {
        let index = frame.index_in_block();
        match block.state() {
            BlockState::Small if self.is_plain_folio(block, frame, order) => Ok(()),
            BlockState::Small if !block.used.contains(index) => Err(FreeError::DoubleFree),
            BlockState::Small if !block.heads.contains(index) => {
                Err(if block.held.contains(index) { FreeError::InUse } else { FreeError::WrongOrder })
            }
            BlockState::Small if block.held.contains(index) => Err(FreeError::InUse),
            BlockState::Small if block.folio_frames(index) != order.frames() as usize => {
                Err(FreeError::WrongOrder)
            }
            BlockState::Small | BlockState::Metadata => Err(FreeError::InUse),
            BlockState::Whole | BlockState::Listed => Err(FreeError::DoubleFree),
            BlockState::Absent => Err(FreeError::NotMemory),
            BlockState::Folio | BlockState::FolioTail => Err(FreeError::WrongOrder),
        }
    }

    /// [`Self::check_small`], and that the folio is on no list.
    pub(in crate::page_alloc) fn check_listable(
        &self,
        block: &Block,
        frame: Frame,
        order: Order,
    ) -> Result<(), FreeError> {
        match block.columns().map(|columns| columns.state(frame.index_in_block())) {
            Some(state) if state.with_zeroes(false) == FrameState::in_use(order) => Ok(()),
            Some(state) if state.is_free() => Err(FreeError::DoubleFree),
            _ => self.check_small(block, frame, order),
        }
    }

    /// Whether [`Self::check_small`] holds of exactly this folio.
    pub(in crate::page_alloc) fn is_plain_folio(&self, block: &Block, frame: Frame, order: Order) -> bool {
        let (index, count) = (frame.index_in_block(), order.frames() as usize);
        if block.state() != BlockState::Small || !block.is_folio(index, count) {
            return false;
        }
        let maps = block.small_maps(self.platform);
        (index..index + count).all(|index| maps.get(index) == 0)
    }

    /// For a folio of whole blocks.
    pub(in crate::page_alloc) fn check_whole(
        &self,
        block: &Block,
        frame: Frame,
        order: Order,
    ) -> Result<(), FreeError> {
        match block.state() {
            BlockState::Folio if frame.index_in_block() == 0 => {}
            BlockState::Whole | BlockState::Listed => return Err(FreeError::DoubleFree),
            BlockState::Absent => return Err(FreeError::NotMemory),
            BlockState::Metadata => return Err(FreeError::InUse),
            BlockState::Folio | BlockState::FolioTail | BlockState::Small => {
                return Err(FreeError::WrongOrder);
            }
        }
        if block.order.load(Ordering::Relaxed) != order.get() {
            return Err(FreeError::WrongOrder);
        }
        let mapped = block.large_maps.load(Ordering::Relaxed) != 0
            || block.folio_maps.load(Ordering::Relaxed) != 0
            || block.small_maps(self.platform).any();
        if mapped || block.held.contains(0) { Err(FreeError::InUse) } else { Ok(()) }
    }
}
