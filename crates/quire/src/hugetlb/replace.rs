//! Replaces pages of a pool by others of the same size, in use or free.
//!
//! The page that replaces another is a free one of the pool, or a new one that joins the pool as the other leaves
//! it. So the size of the pool is the same at any time, and no limit of surplus pages matters.
//!
//! The pool counts a page that moves in one of its two places. Before leaves or a file own the new page, it counts that
//! one ([`HugePools::count_moved`]): from then on any task can give it back, or move it on. Until then only the task
//! that moves it has it.

use core::sync::atomic::Ordering;

use super::failure::add_page;
use super::pool::Pool;
use super::resize::take_from_node;
use super::{HugePools, HugeSize};
use crate::addr::Frame;
use crate::error::AllocError;
use crate::page_alloc::{NodePolicy, PageAllocator};
use crate::platform::Platform;

/// A page that is to replace another. It may still be known to be zero.
#[must_use = "it replaces a page, or goes back"]
pub(crate) struct OtherPage {
    pub(crate) frame: Frame,
    /// It is in no pool yet.
    is_new: bool,
}

impl HugePools<'_> {
    /// Takes a page to replace one in use: a free page of the pool if `pooled`, or else a new one.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn take_replacement<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodePolicy,
        pooled: bool,
    ) -> Result<OtherPage, AllocError> {
        if pooled && let Ok(frame) = self.take_marked(pages, size, (nodes, 0), false) {
            return Ok(OtherPage { frame, is_new: false });
        }
        let frame = self.new_page(pages, size, nodes)?;
        self.thaw(pages, frame);
        Ok(OtherPage { frame, is_new: true })
    }

    /// Gives back a page that did not replace another.
    ///
    /// # Safety
    /// Invariant 1: the caller owns the page and gives it up.
    pub(crate) unsafe fn drop_replacement<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        page: OtherPage,
    ) {
        pages.frames().huge_note(page.frame).store(0, Ordering::Relaxed);
        if page.is_new {
            self.freeze(pages, page.frame);
            self.release(pages, size, &[page.frame]);
        } else {
            // SAFETY: invariant 1: by this function's contract.
            unsafe { self.give(pages, size, page.frame, false) };
        }
    }

    /// Ends the use of a page that another one has replaced, with all that was noted for it. The pool counts the other
    /// one already.
    ///
    /// # Safety
    /// Invariant 1: the caller owns the page `old` and gives it up.
    pub(crate) unsafe fn give_replaced<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        old: Frame,
        new: &OtherPage,
    ) {
        pages.frames().huge_note(old).store(0, Ordering::Relaxed);
        if !new.is_new {
            // SAFETY: invariant 1: by this function's contract.
            return unsafe { self.give(pages, size, old, false) };
        }
        self.freeze(pages, old);
        self.release(pages, size, &[old]);
    }

    /// Counts the page `to` in the pool instead of `from`. `new` is one of the two, and the caller owns both. Does
    /// nothing if `new` is the pool's, which counts both then.
    pub(crate) fn count_moved<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        [from, to]: [Frame; 2],
        new: &OtherPage,
    ) {
        if new.is_new {
            let mut pool = self.lock(pages, size);
            pool.forget(pages.store().node_of_frame(from));
            pool.add_used(pages.store().node_of_frame(to));
            move_surplus(&mut pool, pages, from, to);
        }
    }

    /// Counts a page that some leaves still own again, beside the one that replaced it. The caller still moves it.
    pub(super) fn keep_replaced<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        old: Frame,
        new: &OtherPage,
    ) {
        if new.is_new {
            let mut pool = self.lock(pages, size);
            let node = pages.store().node_of_frame(old);
            pool.add_used(node);
            pool.change_surplus(node, 1);
        }
    }

    /// Replaces a free page by a new one. With `bad`, a frame of it that must not be used, the page just leaves if the
    /// pool can spare it. Returns whether the page was free.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub(crate) fn replace_free<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        old: Frame,
        bad: Option<Frame>,
    ) -> Result<bool, AllocError> {
        let mut pool = self.lock(pages, size);
        let mut new = None;
        if pool.is_free(pages.frames(), old) && (bad.is_none() || pool.unreserved() == 0) {
            drop(pool);
            new =
                Some(self.new_page(pages, size, NodePolicy::Preferred(pages.store().node_of_frame(old)))?);
            pool = self.lock(pages, size);
        }
        let replaced = pool.is_free(pages.frames(), old);
        if replaced {
            let node = pages.store().node_of_frame(old);
            pool.leave_from(pages.frames(), node, old);
            // To count is to look at every free page.
            if pages.frames().has_bad(old) {
                pool.recount_bad(pages);
            }
            match new.take() {
                Some(new) => {
                    add_page(&mut pool, pages, pages.store().node_of_frame(new), new);
                    move_surplus(&mut pool, pages, old, new);
                }
                None => {
                    let left = pool.node(node);
                    pool.change_surplus(node, -i64::from(left.surplus > left.total));
                }
            }
        }
        drop(pool);
        if replaced {
            self.settle(pages, size, [old]);
            bad.inspect(|&bad| _ = pages.condemn(bad));
            self.release(pages, size, &[old]);
        }
        if let Some(new) = new {
            self.release(pages, size, &[new]);
        }
        Ok(replaced)
    }

    /// A page in no pool.
    fn new_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        nodes: NodePolicy,
    ) -> Result<Frame, AllocError> {
        let mut frame = [Frame(0)];
        let mut nodes = pages.requests().nodes_for(nodes, 0);
        if !nodes.any(|node| take_from_node(pages, node, size.order(), &mut frame) == 1) {
            return Err(AllocError::OutOfMemory);
        }
        self.describe(pages, size, frame.into_iter());
        Ok(frame[0])
    }
}

/// Keeps the surplus pages of a node within its pages, after one of them was replaced.
fn move_surplus<P: Platform>(pool: &mut Pool, pages: &PageAllocator<'_, P>, old: Frame, new: Frame) {
    let (from, to) = (pages.store().node_of_frame(old), pages.store().node_of_frame(new));
    if pool.node(from).surplus > pool.node(from).total {
        pool.change_surplus(from, -1);
        pool.change_surplus(to, 1);
    }
}
