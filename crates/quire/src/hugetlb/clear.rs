//! Clears free pages while they are in their pool, block by block, so that a fault finds one that is zero.
//!
//! Idle CPUs do so ahead of any use, up to a budget. A fault that finds none clears the page that it is about
//! to take, and holds no lock of its address space meanwhile; other CPUs that fault or are idle clear other
//! blocks of the same page. So a page that a task gives up halfway is still in its pool, as zero as it is.
//!
//! The page can be taken at any time. The CPU that takes it off its list then waits until no other clears it
//! ([`HugePools::settle`]): for one stretch, after which they give up. So a reservation always finds its page.
#![forbid(unsafe_code)]

use super::pool::Pool;
use super::{HugePools, HugeRequest, HugeSize};
use crate::addr::{Frame, FrameRange, Order};
use crate::clear::Extent;
use crate::error::Cancelled;
use crate::limits::MAX_NODES;
use crate::page_alloc::{NodePolicy, PageAllocator};
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;

/// What there is to do for a fault that needs a page of zeroes.
enum Next {
    /// To clear this block of this page.
    Clear(Frame, u32),
    /// To wait for the CPUs that clear the last blocks.
    Wait,
    /// A page is zero, or none is free.
    Nothing,
}

impl HugePools<'_> {
    /// Clears one block of a free page, the next to be taken first, if a fault clears one of this size, or if
    /// fewer frames of the pools are known to be zero than
    /// [`Zeroes::pools_ahead`](crate::page_alloc::Zeroes::pools_ahead) asks for. Returns whether it did. For
    /// idle CPUs; the caller holds no lock.
    pub fn clear_ahead<P: Platform>(&self, pages: &PageAllocator<'_, P>) -> bool {
        HugeSize::ALL.into_iter().any(|size| {
            let pool = self.lock(pages, size);
            let ahead = (pool.zeroed() + 1) * size.order().frames() <= pages.store().pools_ahead();
            let nodes = 0..MAX_NODES as u8;
            let claimed = if ahead || pool.clearing > 0 { claim(&pool, pages, size, nodes, 0) } else { None };
            drop(pool);
            let Some((frame, block)) = claimed else { return false };
            let extent = Extent::new(FrameRange::folio(frame, size.order()), TouchHint::Later);
            let cleared = self.clear_block(pages, size, &extent, block);
            pages.count(Stat::PgzeroAhead, if cleared { Order::BLOCK.frames() } else { 0 });
            cleared
        })
    }

    /// Whether a fault should call [`Self::clear_next`] before it takes a page: one is free for it, and the
    /// next to be taken is not known to be zero.
    pub(crate) fn is_next_stale<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        &HugeRequest { reserved, nodes, turn, .. }: &HugeRequest,
    ) -> bool {
        let pool = self.lock(pages, size);
        let mut nodes = pages.requests().nodes_for(nodes, turn);
        let mut next = || nodes.find_map(|node| pool.is_next_stale(pages.memmap(), node));
        pages.store().remembers_zeroes() && (reserved || pool.unreserved() > 0) && next() == Some(true)
    }

    /// Clears the page that is the next to be taken, together with the other CPUs that do so, until one is
    /// zero. Each takes the block that its own task waits for last: `extent` says of a page how it is touched.
    /// Another task may take the page that is zero then. The caller holds no lock.
    ///
    /// # Errors
    /// [`Cancelled`]: the task is to be killed. What it has cleared is not cleared again.
    pub(crate) fn clear_next<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: (NodePolicy, u64),
        (last, extent): (u32, impl Fn(Frame) -> Extent),
    ) -> Result<(), Cancelled> {
        self.lock(pages, size).clearing += 1;
        let done = loop {
            match self.next_clear(pages, size, nodes, last) {
                Next::Clear(frame, block) => _ = self.clear_block(pages, size, &extent(frame), block),
                Next::Wait => pages.platform().relax(),
                Next::Nothing => break Ok(()),
            }
            if pages.platform().is_dying() {
                break Err(Cancelled);
            }
        };
        self.lock(pages, size).clearing -= 1;
        done
    }

    fn next_clear<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        (policy, turn): (NodePolicy, u64),
        last: u32,
    ) -> Next {
        let pool = self.lock(pages, size);
        for node in pages.requests().nodes_for(policy, turn) {
            return match pool.is_next_stale(pages.memmap(), node) {
                None => continue,
                Some(false) => Next::Nothing,
                Some(true) => claim(&pool, pages, size, node..node + 1, last)
                    .map_or(Next::Wait, |(frame, block)| Next::Clear(frame, block)),
            };
        }
        Next::Nothing
    }

    /// Clears a claimed block, and moves the page to those that are known to be zero if it was the last, even if
    /// the task is to be killed by then: no other CPU would. Returns whether it cleared all of the block.
    fn clear_block<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        extent: &Extent,
        block: u32,
    ) -> bool {
        let (frames, frame, order) = (pages.frames(), extent.frames.start, size.order());
        let cleared = pages.store().clear_claimed_until(extent, block, || pages.platform().is_dying());
        if cleared {
            let mut pool = self.lock(pages, size);
            // It may have been taken, and even demoted, since.
            if pool.is_free(frames, frame) && frames.merge_huge_zeroes(frame, order, block) {
                pool.sort_in(frames, pages.store().node_of_frame(frame), frame);
            }
        }
        cleared
    }

    /// Waits for the CPUs that clear some of pages that have just left their pool. The caller holds no lock but
    /// that of an address space.
    #[inline]
    pub(super) fn settle<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        left: impl IntoIterator<Item = Frame>,
    ) {
        left.into_iter().for_each(|frame| pages.frames().wait_for_huge_clears(frame, size.order()));
    }
}

/// Claims a block of the first of these nodes' pages that has one which no CPU clears.
fn claim<P: Platform>(
    pool: &Pool,
    pages: &PageAllocator<'_, P>,
    size: HugeSize,
    mut nodes: impl Iterator<Item = u8>,
    last: u32,
) -> Option<(Frame, u32)> {
    let of = |frame| Some((frame, pages.frames().claim_huge_clear(frame, size.order(), last)?));
    nodes.find_map(|node| pool.stale_pages(pages.memmap(), node).find_map(of))
}
