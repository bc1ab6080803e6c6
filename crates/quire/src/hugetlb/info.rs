//! The numbers of the pools, and a check of their consistency.
#![forbid(unsafe_code)]

use super::pool::PoolInfo;
use super::{HugePools, HugeSize};
use crate::addr::Frame;
use crate::limits::MAX_NODES;
use crate::page_alloc::{NodeSet, PageAllocator};
use crate::platform::Platform;

/// The error that [`HugePools::validate`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolViolation {
    /// A node's number of free pages is not the length of its list.
    Free(HugeSize, u8),
    /// The numbers of the nodes do not add up, or contradict each other.
    Counts(HugeSize),
    /// A page of the pool is no folio of its size, is not held, or belongs to another node.
    Page(HugeSize, Frame),
    /// The pool takes a free page for one that must be cleared, and all of it is known to be zero.
    Zeroed(HugeSize, Frame),
    /// The window's descriptors of a free page do not say that it is one.
    Descriptors(HugeSize, Frame),
}

impl HugePools<'_> {
    /// The numbers of a pool.
    pub fn info<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize) -> PoolInfo {
        self.lock(pages, size).all()
    }

    /// The numbers of a node's part of a pool.
    pub fn node_info<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, node: u8) -> PoolInfo {
        self.lock(pages, size).node(node)
    }

    /// Calls `show` with every free page of a pool, under its lock. Afterwards any task may take these pages.
    pub fn each_free<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        show: impl FnMut(Frame),
    ) {
        let pool = self.lock(pages, size);
        (0..MAX_NODES as u8).flat_map(|node| pool.free_pages(pages.memmap(), node)).for_each(show);
    }

    /// Checks the pools while no task changes them.
    ///
    /// # Errors
    /// The first [`PoolViolation`] found.
    pub fn validate<P: Platform>(&self, pages: &PageAllocator<'_, P>) -> Result<(), PoolViolation> {
        for size in HugeSize::ALL {
            let pool = self.lock(pages, size);
            let (all, sum) = (pool.all(), pool.sum(NodeSet::ALL));
            let sound = |one: PoolInfo| one.free <= one.total && one.surplus <= one.total;
            let nodes = (0..MAX_NODES as u8).all(|node| sound(pool.node(node)));
            let summed = PoolInfo { reserved: all.reserved, ..sum } == all;
            let bad = pool.count_bad(pages.memmap());
            let claimed = pool.claimed + pool.claimed_surplus;
            if !(nodes && summed && all.reserved <= all.free && claimed == 0 && pool.bad == bad) {
                return Err(PoolViolation::Counts(size));
            }
            for node in 0..MAX_NODES as u8 {
                let mut found = 0;
                for frame in pool.free_pages(pages.memmap(), node) {
                    if !pages.frames().is_huge(frame, size.order())
                        || pages.store().node_of_frame(frame) != node
                    {
                        return Err(PoolViolation::Page(size, frame));
                    }
                    if !self.is_described(pages, size, frame) {
                        return Err(PoolViolation::Descriptors(size, frame));
                    }
                    found += 1;
                }
                let is_zero = |frame: &Frame| pages.frames().is_all_zero(*frame, size.order());
                if let Some(frame) = pool.stale_pages(pages.memmap(), node).find(is_zero) {
                    return Err(PoolViolation::Zeroed(size, frame));
                }
                if found != pool.node(node).free {
                    return Err(PoolViolation::Free(size, node));
                }
            }
        }
        Ok(())
    }
}
