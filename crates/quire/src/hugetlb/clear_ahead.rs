//! Lets idle CPUs clear free pages, so that a fault finds them zero.
//!
//! A page stays in its pool meanwhile, and can be taken at any time: the CPU that takes it off its list waits
//! for one stretch, after which the CPU that clears gives up. So a reservation always finds its page.
#![forbid(unsafe_code)]

use super::{HugePools, HugeSize};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::sync::Pinned;

impl HugePools<'_> {
    /// Clears one block of a free page, the next to be taken first, if fewer frames of the pools are known to
    /// be zero than [`Zeroes::pools_ahead`](crate::page_alloc::Zeroes::pools_ahead) asks for. Returns whether
    /// it did. For idle CPUs; the caller holds no lock.
    pub fn clear_ahead<P: Platform>(&self, pages: &PageAllocator<'_, P>) -> bool {
        HugeSize::ALL.into_iter().any(|size| self.clear_block(pages, size))
    }

    fn clear_block<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize) -> bool {
        let (frames, order) = (pages.frames(), size.order());
        let pinned = Pinned::new(pages.platform());
        let pool = self.lock(pages, size);
        if (pool.zeroed() + 1) * order.frames() > pages.store().pools_ahead() {
            return false;
        }
        let chosen = pool
            .stale_pages(pages.memmap())
            .find_map(|frame| Some((frame, frames.begin_huge_ahead(frame, order)?)));
        drop(pool);
        let Some((frame, block)) = chosen else { return false };
        let cleared = pages.store().clear_huge_ahead(frame, block);
        if cleared {
            let mut pool = self.lock(pages, size);
            // It may have been taken, and even demoted, since.
            let is_here = frames.is_huge(frame, order) && pool.is_free(pages.memmap(), frame);
            if is_here && frames.join_huge_zeroes(frame, order) {
                pool.sort_in(frames, pages.store().node_of_frame(frame), frame);
            }
        }
        drop(pinned);
        cleared
    }
}
