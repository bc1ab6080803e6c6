//! Huge pages with frames that went bad.
//!
//! The page allocator marks a bad frame in its block's record before it asks the pool. A pool looks for
//! marks, under its lock, whenever a page joins it. So one of the two sees the mark of a page that is just on
//! its way to or from a pool, or is being demoted or promoted. A free page with a mark leaves the pool, which
//! has one persistent page less (as in Linux); the page allocator takes it back in small pieces without the
//! bad frames. If every free page is reserved, a surplus page replaces it first, beyond the limit of surplus
//! pages. If none can be allocated, the page stays, free and never handed out, until a reservation ends. Then
//! the task that uses the last reservation is refused
//! ([`AllocError::OutOfMemory`](crate::error::AllocError::OutOfMemory)), as can happen at any time.
#![forbid(unsafe_code)]

use super::pool::Pool;
use super::{HugePools, HugeSize};
use crate::addr::Frame;
use crate::limits::MAX_NODES;
use crate::memmap::MemMap;
use crate::page_alloc::{PageAllocator, has_marks};
use crate::platform::Platform;

/// The outcome for a huge page with a frame that went bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeFailure {
    /// It has left its pool: all of it but the bad frame is free.
    Dissolved,
    /// It is free and reserved: it stays in its pool, and is not handed out.
    Reserved,
    /// It is in use, or on its way: it leaves its pool when it comes back.
    InUse,
}

/// Adds a page to a pool, free, and counts it if it is bad.
pub(super) fn add_page<P: Platform>(pool: &mut Pool, pages: &PageAllocator<'_, P>, node: u8, frame: Frame) {
    pool.add_free(pages.frames(), node, frame);
    pool.bad += u64::from(pages.frames().has_bad(frame));
}

impl Pool {
    pub(super) fn count_bad(&self, memmap: &MemMap) -> u64 {
        (0..MAX_NODES as u8).map(|node| self.bad_pages(memmap, node).count() as u64).sum()
    }

    /// Counts the bad pages anew. The page allocator marks a frame of a free page before the pool is told, so that the
    /// number may be that of an earlier moment.
    pub(super) fn recount_bad<P: Platform>(&mut self, pages: &PageAllocator<'_, P>) {
        self.bad = if pages.frames().bad_frames() == 0 { 0 } else { self.count_bad(pages.memmap()) };
    }

    fn bad_pages<'m>(&self, memmap: &'m MemMap, node: u8) -> impl Iterator<Item = Frame> + 'm {
        self.free_pages(memmap, node).filter(|&frame| has_marks(memmap, frame))
    }

    fn first_bad(&self, memmap: &MemMap) -> Option<(u8, Frame)> {
        (0..MAX_NODES as u8).find_map(|node| Some((node, self.bad_pages(memmap, node).next()?)))
    }
}

impl HugePools<'_> {
    /// Removes a page from its pool, if it can, after the page allocator has marked a frame of it as bad
    /// ([`Verdict::Huge`](crate::page_alloc::Verdict::Huge)). The caller holds no lock.
    pub fn memory_failure<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame) -> HugeFailure {
        let mut pooled = false;
        for size in HugeSize::ALL {
            let head = Frame(frame.0 & !(size.order().frames() - 1));
            let mut pool = self.lock(pages, size);
            pooled |= pages.frames().is_huge(head, size.order());
            if !pool.is_free(pages.frames(), head) {
                continue;
            }
            pool.recount_bad(pages);
            drop(pool);
            self.shed_bad(pages, size);
            let stays = self.lock(pages, size).is_free(pages.frames(), head);
            return if stays { HugeFailure::Reserved } else { HugeFailure::Dissolved };
        }
        if pooled { HugeFailure::InUse } else { HugeFailure::Dissolved }
    }

    /// Removes free pages with bad frames from a pool, as far as reservations allow.
    pub(super) fn shed_bad<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize) {
        while pages.frames().bad_frames() > 0 {
            let mut pool = self.lock(pages, size);
            let found = if pool.bad == 0 { None } else { pool.first_bad(pages.memmap()) };
            let Some((node, frame)) = found else { return };
            if pool.unreserved() == 0 {
                pool.claimed_surplus += 1;
                drop(pool);
                if self.add_batch(pages, size, pages.requests().nodes_by_distance(), 1, true) == 0 {
                    return;
                }
                continue;
            }
            pool.leave_from(pages.frames(), node, frame);
            pool.recount_bad(pages);
            let left = pool.node(node);
            pool.change_surplus(node, -i64::from(left.surplus > left.total));
            drop(pool);
            self.settle(pages, size, [frame]);
            if self.release(pages, size, &[frame]) > 0 {
                // No memory for its descriptors: it stays, and is not handed out.
                return;
            }
            pages.platform().reschedule_point();
        }
    }
}
