//! Demotes a page of 1 GiB to 512 pages of 2 MiB, and promotes 512 to one.
#![forbid(unsafe_code)]

use super::failure::add_page;
use super::pool::Pool;
use super::{HugePools, HugeSize, Stopped};
use crate::addr::{BlockNumber, Frame, Order};
use crate::limits::SECTION_BLOCKS;
use crate::page_alloc::{NodeSet, PageAllocator};
use crate::platform::Platform;

/// The outcome of demoting or promoting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "fewer pages may have been changed than was asked for"]
pub struct Demoted {
    /// Pages of 1 GiB demoted or promoted.
    pub done: u64,
    /// Pages of 1 GiB asked for.
    pub wanted: u64,
    /// Why `done` is not `wanted`.
    pub stopped: Option<Stopped>,
}

impl HugePools<'_> {
    /// Moves `count` free, unreserved pages of 1 GiB to the pool of 2 MiB, 512 for each (`demote`). Allocates
    /// and frees nothing except descriptors in a window. Invokes a reschedule point after each page.
    pub fn demote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        self.each_gigantic(pages, count, || {
            let mut from = self.lock(pages, HugeSize::Size1G);
            let node = from.node_by(nodes, |node| node.spare()).filter(|_| from.unreserved() > 0);
            let found = node.and_then(|node| Some((node, from.remove_free(pages.frames(), node)?)));
            let (node, frame) = found.ok_or(Stopped::OutOfMemory)?;
            drop(from);
            self.settle(pages, HugeSize::Size1G, [frame]);
            if self.undescribe(pages, HugeSize::Size1G, core::iter::once(frame)).is_err() {
                add_page(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
                return Err(Stopped::NoDescriptors(1));
            }
            pages.frames().split_huge(frame);
            self.describe(pages, HugeSize::Size2M, parts(frame));
            let mut to = self.lock(pages, HugeSize::Size2M);
            parts(frame).rev().for_each(|part| add_page(&mut to, pages, node, part));
            drop(to);
            self.shed_bad(pages, HugeSize::Size2M);
            Ok(true)
        })
    }

    /// Moves 512 free, unreserved pages of 2 MiB in a row to the pool of 1 GiB, as one page, `count` times:
    /// the reverse of [`Self::demote`], which Linux lacks. Allocates and frees nothing except descriptors in
    /// a window. Looks at each 1 GiB of the machine once, in order of address: pages that become free behind
    /// it need another call. Invokes a reschedule point after each 1 GiB that starts with a page of the pool.
    pub fn promote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        let mut starts = pages.memmap().whole_sections().map(BlockNumber::first_frame);
        self.each_gigantic(pages, count, || {
            // Skip memory that is in no pool, without the lock.
            let candidate = starts.find(|&start| pages.frames().is_huge(start, Order::BLOCK));
            let frame = candidate.ok_or(Stopped::OutOfMemory)?;
            let node = pages.store().node_of_frame(frame);
            let mut from = self.lock(pages, HugeSize::Size2M);
            if from.unreserved() < SECTION_BLOCKS as u64 {
                return Err(Stopped::OutOfMemory);
            }
            if !nodes.contains(node) || !can_be_one(&from, pages, node, frame) {
                return Ok(false);
            }
            parts(frame).for_each(|part| from.leave_from(pages.frames(), node, part));
            drop(from);
            self.settle(pages, HugeSize::Size2M, parts(frame));
            if self.undescribe(pages, HugeSize::Size2M, parts(frame)).is_err() {
                let mut back = self.lock(pages, HugeSize::Size2M);
                parts(frame).rev().for_each(|part| add_page(&mut back, pages, node, part));
                return Err(Stopped::NoDescriptors(SECTION_BLOCKS as u64));
            }
            pages.frames().merge_huge(frame);
            self.describe(pages, HugeSize::Size1G, core::iter::once(frame));
            add_page(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
            self.shed_bad(pages, HugeSize::Size1G);
            Ok(true)
        })
    }

    /// Calls `one` until it has changed `wanted` pages. It returns whether it changed one, or why it cannot.
    fn each_gigantic<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        wanted: u64,
        mut one: impl FnMut() -> Result<bool, Stopped>,
    ) -> Demoted {
        let (mut done, mut stopped) = (0, None);
        while done < wanted && stopped.is_none() {
            match one() {
                Ok(changed) => done += u64::from(changed),
                Err(why) => stopped = Some(why),
            }
            if pages.platform().is_dying() {
                stopped = stopped.or((done < wanted).then_some(Stopped::Interrupted));
            }
            pages.platform().reschedule_point();
        }
        Demoted { done, wanted, stopped }
    }
}

/// The pages of 2 MiB of a page of 1 GiB.
fn parts(frame: Frame) -> impl DoubleEndedIterator<Item = Frame> {
    (0..SECTION_BLOCKS as u64).map(move |at| frame.add(at * Order::BLOCK.frames()))
}

/// Whether all parts of a 1 GiB are free pages of one node that can be spared.
fn can_be_one<P: Platform>(pool: &Pool, pages: &PageAllocator<'_, P>, node: u8, frame: Frame) -> bool {
    let is_part = |part| {
        // The 1 GiB may hold memory of two nodes.
        pool.is_free(pages.frames(), part)
            && pages.store().node_of_frame(part) == node
            && !pages.frames().has_bad(part)
    };
    pool.node(node).spare() >= SECTION_BLOCKS as u64 && parts(frame).all(is_part)
}
