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
    /// Reserves the frames of a folio of order 9, to be taken one by one. `None`, with the folio freed, if a
    /// frame is bad.
    pub(crate) fn reserve_block(&self, folio: Folio) -> Option<BlockReservation> {
        if self.split_in_use(folio.frame(), Order::FRAME).is_err() {
            let freed = self.free(folio);
            debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
            return None;
        }
        let start = folio.into_raw();
        let block = self.frames().memmap.block(start.block());
        block.lock(self.platform());
        // The origin of the folio means nothing. Without a family, frames can be a file's without a table.
        block.columns().inspect(|columns| {
            columns.set_states(0, BLOCK_FRAMES, FrameState::UNCLAIMED);
            columns.set_origins_from(0);
        });
        block.unlock(self.platform());
        Some(BlockReservation::new(start))
    }
}
