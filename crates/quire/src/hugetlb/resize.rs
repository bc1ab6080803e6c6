//! Resizes a pool.
//!
//! The order of steps is Linux's (`set_max_huge_pages`): surplus pages become persistent before others are
//! allocated; a pool shrinks by its free, unreserved pages, and then pages in use become surplus.

use super::descriptors::Gathered;
use super::failure::add_page;
use super::pool::Pool;
use super::{HugePools, HugeSize};
use crate::addr::{Frame, FrameRange, Order};
use crate::limits::HUGE_BATCH;
use crate::page_alloc::{Folio, Gfp, NodePolicy, NodeSet, PageAllocator};
use crate::platform::{Context, Platform};
use crate::stats::Stat;

/// The outcome of a resize. Less than was asked for is no error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a resize may do less than was asked for"]
pub struct Resized {
    /// Persistent pages before.
    pub before: u64,
    /// Persistent pages after.
    pub after: u64,
    /// Persistent pages that were asked for.
    pub wanted: u64,
    /// Why `after` is not `wanted`.
    pub stopped: Option<Stopped>,
}

/// Why a resize ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// The allowed nodes have no more memory in such pieces.
    OutOfMemory,
    /// So many pages are in use or reserved beyond what was asked for: they are surplus now, and leave the
    /// pool when they become free.
    InUse(u64),
    /// There was no memory for the descriptors of so many pages, so they could not leave (with the feature
    /// `published`, `DescriptorPolicy` says which policies need some). Pages that should have left a
    /// shrinking pool are surplus now, and another resize to the same size tries again. Pages that should
    /// have been demoted or promoted are as they were.
    NoDescriptors(u64),
    /// The task is being killed; the pages moved so far stay.
    Interrupted,
}

impl HugePools<'_> {
    /// Grows or shrinks a pool to `wanted` persistent pages, evenly on these nodes (`nr_hugepages`). `wanted`
    /// counts the pages of all nodes, even if `nodes` is one. Several CPUs with the same goal share the work.
    /// Invokes a reschedule point after each [`HUGE_BATCH`] pages, and ends there when the task is dying.
    ///
    /// Growing takes memory that is free in one piece already, and moves none; shrinking needs no memory.
    pub fn resize<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodeSet,
        wanted: u64,
    ) -> Resized {
        let info = self.info(pages, size);
        let before = info.persistent();
        let mut stopped = None;
        let mut nodes = nodes.intersection(NodeSet::first(pages.requests().node_count()));
        let mut moving = Moving { leftover: self.leftover(info), ..Moving::default() };
        while stopped.is_none() {
            let step = if wanted > before {
                self.grow_some(pages, size, &mut nodes, wanted, &mut moving)
            } else {
                self.shrink_some(pages, size, nodes, wanted, &mut moving)
            };
            match step {
                // Look again once this CPU's pages have joined: another CPU may fail to add those it claimed.
                Progress::Done if wanted > before && !moving.gathered.is_empty() => {
                    self.add_gathered(pages, size, core::mem::take(&mut moving.gathered));
                }
                Progress::Done => break,
                Progress::Stopped(why) => stopped = Some(why),
                Progress::More if pages.platform().is_dying() => stopped = Some(Stopped::Interrupted),
                Progress::More => pages.platform().reschedule_point(),
            }
        }
        if wanted > before {
            self.add_gathered(pages, size, moving.gathered);
        } else {
            moving.kept += self.release_all(pages, size, moving.gathered);
        }
        if moving.kept > 0 && stopped != Some(Stopped::Interrupted) {
            stopped = Some(Stopped::NoDescriptors(moving.kept));
        }
        let after = self.info(pages, size);
        Resized { before, after: after.persistent(), wanted, stopped }
    }

    /// Resizes one node's part of a pool to `wanted` (`node0/.../nr_hugepages`).
    pub fn resize_node<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        node: u8,
        wanted: u64,
    ) -> Resized {
        let others = {
            let pool = self.lock(pages, size);
            pool.all().persistent() - pool.node(node).persistent()
        };
        let done = self.resize(pages, size, NodeSet::one(node), others.saturating_add(wanted));
        let own = |all: u64| all.saturating_sub(others);
        Resized { before: own(done.before), after: own(done.after), wanted, ..done }
    }

    /// Adds one batch.
    fn grow_some<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: &mut NodeSet,
        wanted: u64,
        moving: &mut Moving,
    ) -> Progress {
        let mut pool = self.lock(pages, size);
        let missing = wanted.saturating_sub(pool.all().persistent() + pool.claimed);
        if missing == 0 {
            let others_may_fail = pool.claimed > 0 && moving.gathered.is_empty();
            return if others_may_fail { Progress::More } else { Progress::Done };
        }
        if let Some(node) = pool.node_by(*nodes, |node| node.surplus) {
            let kept = missing.min(pool.node(node).surplus);
            pool.change_surplus(node, -(kept as i64));
            return Progress::More;
        }
        let Some(node) = pool.node_by(*nodes, |node| u64::MAX - node.total) else {
            return Progress::Stopped(Stopped::OutOfMemory);
        };
        let count = (missing.div_ceil(nodes.len().max(1) as u64) as usize).min(batch_of(size));
        pool.claimed += count as u64;
        drop(pool);
        let got = if self.gathers() {
            self.gather_claimed(pages, size, node, count, &mut moving.gathered)
        } else {
            self.add_claimed(pages, size, core::iter::once(node), count, false)
        };
        if got < count {
            *nodes = nodes.without(node);
        }
        Progress::More
    }

    /// Allocates claimed pages, a batch at most, from a node, and gathers them; returns how many.
    fn gather_claimed<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        node: u8,
        count: usize,
        gathered: &mut Gathered,
    ) -> usize {
        let mut frames = [Frame(0); HUGE_BATCH];
        let got = take_from_node(pages, node, size.order(), &mut frames[..count]);
        self.gather(pages, gathered, &frames[..got]);
        if got < count {
            self.lock(pages, size).claimed -= (count - got) as u64;
        }
        got
    }

    /// Adds claimed pages, a batch at most, allocated from these nodes in turn; returns how many.
    pub(super) fn add_claimed<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: impl Iterator<Item = u8>,
        count: usize,
        surplus: bool,
    ) -> usize {
        let got = self.add_batch(pages, size, nodes, count, surplus);
        self.shed_bad(pages, size);
        got
    }

    /// As [`Self::add_claimed`], without shedding pages that went bad meanwhile.
    pub(super) fn add_batch<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: impl Iterator<Item = u8>,
        count: usize,
        surplus: bool,
    ) -> usize {
        let mut frames = [Frame(0); HUGE_BATCH];
        let mut got = 0;
        for node in nodes {
            got += take_from_node(pages, node, size.order(), &mut frames[got..count]);
        }
        self.describe(pages, size, frames[..got].iter().copied());
        let mut pool = self.lock(pages, size);
        let claimed = if surplus { &mut pool.claimed_surplus } else { &mut pool.claimed };
        *claimed -= count as u64;
        for &frame in &frames[..got] {
            let node = pages.store().node_of_frame(frame);
            add_page(&mut pool, pages, node, frame);
            if surplus {
                pool.change_surplus(node, 1);
            }
        }
        got
    }

    /// Adds folios that the caller has allocated to the pool, a batch at most; returns how many.
    pub fn adopt<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        folios: impl Iterator<Item = Folio>,
    ) -> usize {
        let mut frames = [Frame(0); HUGE_BATCH];
        let mut got = 0;
        for (frame, folio) in frames[..batch_of(size)].iter_mut().zip(folios) {
            debug_assert_eq!(folio.order(), size.order());
            *frame = pages.frames().make_huge(folio);
            got += 1;
        }
        let frames = &frames[..got];
        pages.count(Stat::HtlbBuddyAllocSuccess, got as u64);
        self.describe(pages, size, frames.iter().copied());
        let mut pool = self.lock(pages, size);
        frames
            .iter()
            .for_each(|&frame| add_page(&mut pool, pages, pages.store().node_of_frame(frame), frame));
        drop(pool);
        self.shed_bad(pages, size);
        got
    }

    /// Removes one batch.
    fn shrink_some<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodeSet,
        wanted: u64,
        moving: &mut Moving,
    ) -> Progress {
        let mut frames = [Frame(0); HUGE_BATCH];
        let mut count = 0;
        let mut pool = self.lock(pages, size);
        let spare = pool.all().persistent().saturating_sub(wanted).min(pool.unreserved());
        let most = spare.min(batch_of(size) as u64) as usize;
        let node = pool.node_by(nodes, |node| node.spare());
        let most = node.map_or(0, |node| most.min(pool.node(node).spare() as usize));
        while let Some(node) = node.filter(|_| count < most)
            && let Some(frame) = pool.remove_free(pages.frames(), node)
        {
            frames[count] = frame;
            count += 1;
        }
        if count == 0 && moving.leftover > 0 {
            count = take_leftover(&mut pool, pages, nodes, moving, &mut frames[..batch_of(size)]);
        }
        if count == 0 {
            return make_surplus(&mut pool, nodes, wanted);
        }
        drop(pool);
        self.settle(pages, size, frames[..count].iter().copied());
        if self.gathers() {
            self.gather(pages, &mut moving.gathered, &frames[..count]);
        } else {
            moving.kept += self.release(pages, size, &frames[..count]);
        }
        Progress::More
    }
}

/// The state of a resize.
#[derive(Default)]
struct Moving {
    /// Pages in no pool, to be added or freed together.
    gathered: Gathered,
    /// Pages that could not be freed.
    kept: u64,
    /// Free surplus pages that were there at the start and were not tried yet.
    leftover: u64,
}

/// Takes free surplus pages out of their pool; returns how many.
fn take_leftover<P: Platform>(
    pool: &mut Pool,
    pages: &PageAllocator<'_, P>,
    nodes: NodeSet,
    moving: &mut Moving,
    out: &mut [Frame],
) -> usize {
    let mut count = 0;
    while count < out.len()
        && moving.leftover > 0
        && pool.unreserved() > 0
        && let Some(node) = pool.node_by(nodes, |node| node.free.min(node.surplus))
        && let Some(frame) = pool.remove_free(pages.frames(), node)
    {
        pool.change_surplus(node, -1);
        moving.leftover -= 1;
        out[count] = frame;
        count += 1;
    }
    count
}

enum Progress {
    Done,
    More,
    Stopped(Stopped),
}

/// Makes persistent pages beyond `wanted` surplus.
fn make_surplus(pool: &mut Pool, nodes: NodeSet, wanted: u64) -> Progress {
    let beyond = pool.all().persistent().saturating_sub(wanted);
    let mut left = beyond;
    while left > 0 {
        let Some(node) = pool.node_by(nodes, |node| node.persistent()) else { break };
        let some = left.min(pool.node(node).persistent());
        pool.change_surplus(node, some as i64);
        left -= some;
    }
    if beyond == 0 { Progress::Done } else { Progress::Stopped(Stopped::InUse(beyond)) }
}

/// Pages that one step moves.
fn batch_of(size: HugeSize) -> usize {
    match size {
        HugeSize::Size2M => HUGE_BATCH,
        HugeSize::Size1G => 1,
    }
}

/// Allocates huge pages from one node alone; returns how many it got. If the node has less than it wants, the
/// per-CPU lists are drained, and it tries once more (Linux: `__alloc_pages_direct_reclaim`). The caller holds no
/// lock and is not pinned.
pub(super) fn take_from_node<P: Platform>(
    pages: &PageAllocator<'_, P>,
    node: u8,
    order: Order,
    out: &mut [Frame],
) -> usize {
    let gfp = Gfp::USER.from_nodes(NodePolicy::Bind(NodeSet::one(node))).for_zeroes();
    let wanted = out.len();
    let take = |out: &mut [Frame]| {
        let folios = pages.alloc_bulk(gfp, order, out);
        let got = folios.len();
        for folio in folios {
            pages.store().keep_zeroes(folio.frame(), order);
            pages.frames().make_huge(folio);
        }
        got
    };
    let mut got = take(out);
    if got < wanted && pages.platform().context() == Context::Task {
        pages.lists().drain_all();
        got += take(&mut out[got..]);
    }
    pages.count(Stat::HtlbBuddyAllocSuccess, got as u64);
    pages.count(Stat::HtlbBuddyAllocFail, u64::from(got < wanted));
    got
}

/// Frees huge pages that have left their pool.
pub(super) fn give_back<P: Platform>(pages: &PageAllocator<'_, P>, order: Order, frames: &[Frame]) {
    // A pool hands out last what it was given first: in this order, neighbours are freed together.
    let heads = frames.iter().rev().map(|&frame| FrameRange::folio(frame, Order::FRAME));
    // SAFETY: invariant 1: the pool held the folios, and names them no more.
    let freed = unsafe { pages.counts().release_runs(heads) };
    debug_assert_eq!(freed, order.frames() * frames.len() as u64, "a free huge page is not mapped");
}
