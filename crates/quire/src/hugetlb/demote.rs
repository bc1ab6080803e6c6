//! The verbs: makes 512 pages of 2 MiB out of one of 1 GiB, and one out of 512.
#![forbid(unsafe_code)]

use super::failure::join;
use super::pool::Pool;
use super::{HugePools, HugeSize, Stopped};
use crate::addr::{Frame, Order};
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
    /// Moves `count` free pages of 1 GiB that nobody was promised to the pool of 2 MiB, 512 for each (`demote`). Neither
    /// allocates nor frees anything, save for descriptors in a window. Comes by a reschedule point after each page.
    pub fn demote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        self.each_gigantic(pages, count, || {
            let mut from = self.lock(pages, HugeSize::Size1G);
            let node = from.node_by(nodes, |node| node.spare()).filter(|_| from.unpromised() > 0);
            let found = node.and_then(|node| Some((node, from.leave(pages.memmap(), node)?)));
            let (node, frame) = found.ok_or(Stopped::OutOfMemory)?;
            drop(from);
            if self.undescribe(pages, HugeSize::Size1G, core::iter::once(frame)).is_err() {
                join(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
                return Err(Stopped::NoDescriptors(1));
            }
            pages.split_huge(frame);
            self.describe(pages, HugeSize::Size2M, parts(frame));
            let mut to = self.lock(pages, HugeSize::Size2M);
            parts(frame).rev().for_each(|part| join(&mut to, pages, node, part));
            drop(to);
            self.shed_bad(pages, HugeSize::Size2M);
            Ok(())
        })
    }

    /// Moves 512 free pages of 2 MiB in a row that nobody was promised to the pool of 1 GiB, as one page, `count` times: the
    /// way back from [`Self::demote`], which Linux has not. Neither allocates nor frees anything, save for descriptors in a
    /// window. Comes by a reschedule point after each page.
    pub fn promote<P: Platform>(&self, pages: &PageAllocator<'_, P>, nodes: NodeSet, count: u64) -> Demoted {
        self.each_gigantic(pages, count, || {
            let mut from = self.lock(pages, HugeSize::Size2M);
            let (node, frame) = find_run(&from, pages, nodes).ok_or(Stopped::OutOfMemory)?;
            parts(frame).for_each(|part| from.leave_from(pages.memmap(), node, part));
            drop(from);
            if self.undescribe(pages, HugeSize::Size2M, parts(frame)).is_err() {
                let mut back = self.lock(pages, HugeSize::Size2M);
                parts(frame).rev().for_each(|part| join(&mut back, pages, node, part));
                return Err(Stopped::NoDescriptors(SECTION_BLOCKS as u64));
            }
            pages.join_huge(frame);
            self.describe(pages, HugeSize::Size1G, core::iter::once(frame));
            join(&mut self.lock(pages, HugeSize::Size1G), pages, node, frame);
            self.shed_bad(pages, HugeSize::Size1G);
            Ok(())
        })
    }

    fn each_gigantic<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        wanted: u64,
        mut one: impl FnMut() -> Result<(), Stopped>,
    ) -> Demoted {
        let (mut done, mut stopped) = (0, None);
        while done < wanted && stopped.is_none() {
            match one() {
                Ok(()) => done += 1,
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

/// A page of 1 GiB all of whose parts are free pages of the pool.
fn find_run<P: Platform>(pool: &Pool, pages: &PageAllocator<'_, P>, nodes: NodeSet) -> Option<(u8, Frame)> {
    if pool.unpromised() < SECTION_BLOCKS as u64 {
        return None;
    }
    let is_free = |part| {
        pool.is_free(pages.memmap(), part) && pages.is_huge(part, Order::BLOCK) && !pages.has_bad(part)
    };
    let in_node = |node| {
        let starts = pool.free_pages(pages.memmap(), node).filter(|frame| frame.is_aligned(Order::GIGANTIC));
        starts.filter(|&start| parts(start).all(is_free)).map(|start| (node, start)).next()
    };
    let has_some = |&node: &u8| nodes.contains(node) && pool.node(node).spare() >= SECTION_BLOCKS as u64;
    (0..pages.node_count() as u8).filter(has_some).find_map(in_node)
}
