//! Splits the folios that wait for it.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Order};
use crate::error::SplitError;
use crate::limits::DEFERRED_SPLITS;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::split::Only;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Splits folios that wait for it, the oldest first, until `wanted` frames became free, at most [`DEFERRED_SPLITS`] of
    /// them; how many frames did.
    pub fn split_deferred(&self, wanted: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..DEFERRED_SPLITS {
            let first = self.counts().deferred.lock(self.platform()).first;
            let Some(number) = first.checked_sub(1).filter(|_| freed < wanted) else { break };
            match self.split_waiting(BlockNumber(number as u32)) {
                Ok(more) => freed += more,
                // It was freed, or another task split it, since we looked.
                Err(SplitError::NotAFolio) => {}
                // A large leaf maps it again, or another task is splitting it.
                Err(SplitError::InUse) => self.counts().forget_if_deferred(BlockNumber(number as u32)),
                Err(SplitError::OutOfMemory) => break,
            }
        }
        freed
    }

    /// Splits a folio as far as it must be for what is not mapped to be free, if it waits for that still.
    fn split_waiting(&self, number: BlockNumber) -> Result<u64, SplitError> {
        if self.frames().memmap.block(number).order.load(Ordering::Relaxed) > Order::BLOCK.get() {
            return self.split_large(number, Order::BLOCK, Only::Waiting);
        }
        self.split_block(number, Order::FRAME, Only::Waiting)
    }
}
