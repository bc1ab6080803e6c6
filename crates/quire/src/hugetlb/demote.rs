//! Demotes a page of 1 GiB to 512 pages of 2 MiB, and promotes 512 to one.
#![forbid(unsafe_code)]

use super::failure::join;
use super::pool::Pool;
use super::{HugePools, HugeSize, Stopped};
use crate::addr::{BlockNumber, Frame, Order};
use crate::limits::SECTION_BLOCKS;
use crate::page_alloc::{NodeSet, PageAllocator};
use crate::platform::Platform;

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "fewer pages may have been changed than was asked for"]
pub struct Demoted {
    /// Pages of 1 GiB that were demoted, or promoted.
    pub done: u64,
    /// Pages of 1 GiB that were to be.
    pub wanted: u64,
    /// Why these are not the same.
    pub stopped: Option<Stopped>,
}

impl HugePools {
    /// Moves `count` free pages of 1 GiB that are not reserved to the pool of 2 MiB, 512 for each (`demote`).
    /// Neither allocates nor frees anything, save for descriptors in a window. Comes by a reschedule point
    /// after each page.
    pub fn demote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        self.each_gigantic(pages, count, || {
            let mut from = self.lock(pages, HugeSize::Size1G);
            let node = from.node_by(nodes, |node| node.spare()).filter(|_| from.unreserved() > 0);
            let found = node.and_then(|node| Some((node, from.leave(pages.memmap(), node)?)));
            let (node, frame) = found.ok_or(Stopped::OutOfMemory)?;
            drop(from);
            if self.undescribe(pages, HugeSize::Size1G, core::iter::once(frame)).is_err() {
                join(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
                return Err(Stopped::NoDescriptors(1));
            }
            pages.frames().split_huge(frame);
            self.describe(pages, HugeSize::Size2M, parts(frame));
            let mut to = self.lock(pages, HugeSize::Size2M);
            parts(frame).rev().for_each(|part| join(&mut to, pages, node, part));
            drop(to);
            self.shed_bad(pages, HugeSize::Size2M);
            Ok(true)
        })
    }

    /// Moves 512 free pages of 2 MiB in a row that are not reserved to the pool of 1 GiB, as one page,
    /// `count` times, in order of address: the way back from [`Self::demote`], which Linux has not. Neither
    /// allocates nor frees anything, save for descriptors in a window. Looks at each 1 GiB of the machine
    /// once, however the pool's pages are linked: what becomes free behind it is left to another request.
    /// Comes by a reschedule point after each 1 GiB that has a page of the pool in front.
    pub fn promote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        let mut starts = pages.memmap().whole_sections().map(BlockNumber::first_frame);
        self.each_gigantic(pages, count, || {
            // Most memory is in no pool, which takes no lock to see.
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
            parts(frame).for_each(|part| from.leave_from(pages.memmap(), node, part));
            drop(from);
            if self.undescribe(pages, HugeSize::Size2M, parts(frame)).is_err() {
                let mut back = self.lock(pages, HugeSize::Size2M);
                parts(frame).rev().for_each(|part| join(&mut back, pages, node, part));
                return Err(Stopped::NoDescriptors(SECTION_BLOCKS as u64));
            }
            pages.frames().join_huge(frame);
            self.describe(pages, HugeSize::Size1G, core::iter::once(frame));
            join(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
            self.shed_bad(pages, HugeSize::Size1G);
            Ok(true)
        })
    }

    /// Calls `one` until it has changed as many pages as are wanted: it says whether it changed one, or why
    /// there are no more.
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

/// Whether all parts of a 1 GiB are free pages of a node's pool that can be spared.
fn can_be_one<P: Platform>(pool: &Pool, pages: &PageAllocator<'_, P>, node: u8, frame: Frame) -> bool {
    let is_part = |part| {
        // Memory of two nodes may meet in the middle.
        pool.is_free(pages.memmap(), part)
            && pages.frames().is_huge(part, Order::BLOCK)
            && pages.store().node_of_frame(part) == node
            && !pages.frames().has_bad(part)
    };
    pool.node(node).spare() >= SECTION_BLOCKS as u64 && parts(frame).all(is_part)
}
