//! Reserves huge pages, takes them from a pool, and gives them back.

use super::{HugePools, HugeSize};
use crate::addr::Frame;
use crate::error::AllocError;
use crate::limits::HUGE_BATCH;
use crate::page_alloc::{NodePolicy, NodeSet, PageAllocator};
use crate::platform::Platform;

impl HugePools<'_> {
    /// Reserves `count` pages, and allocates surplus ones if too few are free (Linux:
    /// `gather_surplus_pages`), those nearest to the running CPU.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: too few are free, and no more surplus pages are allowed, or can be
    /// allocated. Nothing was reserved then.
    pub fn reserve<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        count: u64,
    ) -> Result<(), AllocError> {
        self.reserve_from(pages, size, NodePolicy::Local, count)
    }

    /// The same with surplus pages of the nodes of a policy.
    pub(super) fn reserve_from<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodePolicy,
        count: u64,
    ) -> Result<(), AllocError> {
        let mut gathered = 0;
        loop {
            let mut pool = self.lock(pages, size);
            if pool.unreserved() >= count {
                pool.add_reserved(count as i64);
                return Ok(());
            }
            let missing = count - pool.unreserved();
            drop(pool);
            let got = self.add_surplus(pages, size, (nodes, 0), missing);
            gathered += got;
            if got == 0 {
                self.drop_surplus(pages, size, gathered);
                return Err(AllocError::OutOfMemory);
            }
            pages.platform().reschedule_point();
        }
    }

    /// Ends reservations; surplus pages that are no longer reserved leave the pool (Linux:
    /// `return_unused_surplus_pages`).
    ///
    /// # Panics
    /// In debug builds if `count` is more than is reserved.
    pub fn unreserve<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, count: u64) {
        self.lock(pages, size).add_reserved(-(count as i64));
        self.shed_bad(pages, size);
        self.drop_surplus(pages, size, count);
    }

    /// Takes a page from these nodes, the one nearest to the running CPU first. `reserved`: the page uses up
    /// one of the caller's reservations; else it is an unreserved page, if need be a new surplus one. The
    /// caller owns it until [`Self::give`]; its contents are undefined.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn take<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodeSet,
        reserved: bool,
    ) -> Result<Frame, AllocError> {
        let taken = self.take_marked(pages, size, (NodePolicy::Bind(nodes), 0), reserved);
        taken.inspect(|&frame| pages.frames().forget_huge_zeroes(frame, size.order()))
    }

    /// As [`Self::take`], from the nodes of a policy and a turn
    /// ([`nodes_for`](crate::page_alloc::Requests::nodes_for)). The page keeps its marks of what is zero,
    /// preferably all of it.
    pub(super) fn take_marked<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: (NodePolicy, u64),
        reserved: bool,
    ) -> Result<Frame, AllocError> {
        loop {
            let mut pool = self.lock(pages, size);
            if (reserved || pool.unreserved() > 0)
                && let Some(frame) = pages
                    .requests()
                    .nodes_for(nodes.0, nodes.1)
                    .find_map(|node| pool.take(pages.frames(), node))
            {
                pool.add_reserved(-i64::from(reserved));
                drop(pool);
                self.settle(pages, size, [frame]);
                self.thaw(pages, frame);
                return Ok(frame);
            }
            drop(pool);
            if self.add_surplus(pages, size, nodes, 1) == 0 {
                return Err(AllocError::OutOfMemory);
            }
        }
    }

    /// Gives a page back that no leaf maps. `reserved`: the reservation that it used up holds again. A
    /// surplus page leaves the pool, another becomes free.
    ///
    /// # Safety
    /// Invariant 1: the caller owns the page, which it took from this pool, and gives it up.
    pub unsafe fn give<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
        reserved: bool,
    ) {
        let node = pages.store().node_of_frame(frame);
        self.freeze(pages, frame);
        let mut pool = self.lock(pages, size);
        if !reserved && pool.node(node).surplus > 0 {
            pool.change_surplus(node, -1);
            pool.forget(node);
            drop(pool);
            // If there is no memory for its descriptors it stays, free and surplus.
            self.release(pages, size, &[frame]);
            return;
        }
        pool.push(pages.frames(), node, frame);
        pool.add_reserved(i64::from(reserved));
        pool.bad += u64::from(pages.frames().has_bad(frame));
        drop(pool);
        self.shed_bad(pages, size);
    }

    /// Sets the limit of surplus pages (`nr_overcommit_hugepages`).
    pub fn set_overcommit<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, count: u64) {
        self.lock(pages, size).overcommit = count;
    }

    /// The limit of surplus pages.
    pub fn overcommit<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize) -> u64 {
        self.lock(pages, size).overcommit
    }

    /// Adds up to `wanted` surplus pages within the limit, a batch at most; returns how many.
    fn add_surplus<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        (policy, turn): (NodePolicy, u64),
        wanted: u64,
    ) -> u64 {
        let mut pool = self.lock(pages, size);
        let allowed = pool.overcommit.saturating_sub(pool.all().surplus + pool.claimed_surplus);
        let count = wanted.min(allowed).min(HUGE_BATCH as u64);
        if count == 0 {
            return 0;
        }
        pool.claimed_surplus += count;
        drop(pool);
        let nodes = pages.requests().nodes_for(policy, turn);
        self.add_claimed(pages, size, nodes, count as usize, true) as u64
    }

    /// Removes up to `count` free, unreserved surplus pages from the pool. Invokes a reschedule point after each
    /// [`HUGE_BATCH`] pages.
    fn drop_surplus<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, count: u64) {
        let mut left = count;
        while left > 0 {
            let mut pool = self.lock(pages, size);
            let both = |node: super::PoolInfo| node.free.min(node.surplus);
            let Some(node) = pool.node_by(NodeSet::ALL, both).filter(|_| pool.unreserved() > 0) else {
                return;
            };
            let Some(frame) = pool.remove_free(pages.frames(), node) else { return };
            pool.change_surplus(node, -1);
            drop(pool);
            self.settle(pages, size, [frame]);
            if self.release(pages, size, &[frame]) > 0 {
                return;
            }
            left -= 1;
            if left.is_multiple_of(HUGE_BATCH as u64) {
                pages.platform().reschedule_point();
            }
        }
    }
}
