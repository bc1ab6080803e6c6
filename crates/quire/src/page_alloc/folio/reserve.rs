//! Turns a folio of order 9 into a reservation.
#![forbid(unsafe_code)]

use crate::addr::Order;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::FrameState;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::store::reservation::BlockReservation;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Reserves the frames of a folio of order 9, to be taken one by one. Their descriptors are elsewhere, in
    /// 1/64 of its size. `None`, with the folio freed, if there is no memory for descriptors or a frame is
    /// bad.
    pub(crate) fn reserve_block(&self, folio: Folio) -> Option<BlockReservation> {
        if self.split_in_use(folio.frame(), Order::FRAME).is_err() {
            let freed = self.free(folio);
            debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
            return None;
        }
        let start = folio.into_raw();
        let block = self.frames().memmap.block(start.block());
        block.lock(self.platform());
        block.area().inspect(|area| area.set_states(0, BLOCK_FRAMES, FrameState::UNCLAIMED));
        block.unlock(self.platform());
        Some(BlockReservation::new(start))
    }
}
