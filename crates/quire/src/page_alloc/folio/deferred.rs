//! Splits partially mapped folios whose split was deferred.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Order};
use crate::error::SplitError;
use crate::limits::DEFERRED_SPLITS;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::split::Only;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Splits the folios that wait for it, the oldest first, until `wanted` frames became free, but at most
    /// [`DEFERRED_SPLITS`] folios. Returns how many frames became free.
    pub fn split_deferred(&self, wanted: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..DEFERRED_SPLITS {
            let first = self.counts().deferred.lock(self.platform()).first;
            let Some(number) = first.checked_sub(1).filter(|_| freed < wanted) else { break };
            match self.split_waiting(BlockNumber(number as u32)) {
                Ok(more) => freed += more,
                // Another task freed or split it since it was read.
                Err(SplitError::NotAFolio) => {}
                // A large leaf maps it again, or another task is splitting it.
                Err(SplitError::InUse) => self.counts().forget_if_deferred(BlockNumber(number as u32)),
                Err(SplitError::OutOfMemory) => break,
            }
        }
        freed
    }

    /// Splits a folio, if it still waits for it, as far as its unmapped frames need to be free.
    fn split_waiting(&self, number: BlockNumber) -> Result<u64, SplitError> {
        if self.frames().memmap.block(number).order.load(Ordering::Relaxed) > Order::BLOCK.get() {
            return self.split_large(number, Order::BLOCK, Only::Waiting);
        }
        self.split_block(number, Order::FRAME, Only::Waiting)
    }
}
