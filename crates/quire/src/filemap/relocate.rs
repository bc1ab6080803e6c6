//! Moves pages of a file to other frames.
//!
//! The caller closes the file, makes the pages busy, and unmaps them: no task uses them while they are
//! copied.

use super::FileTable;
use super::file::FileClosed;
use super::reclaim::PageRuns;
use crate::addr::{Frame, FrameRange, Order};
use crate::limits::LOCK_HOLD_FRAMES;
use crate::page_alloc::{Gfp, NodePolicy, PageAllocator};
use crate::platform::{Platform, TouchHint};

/// The outcome of moving a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MovedPage {
    /// The page is in another frame, or was dropped since it can be read again; the old frame is free.
    Gone,
    /// A leaf still maps the page.
    Mapped,
    /// There is no frame for the page.
    OutOfMemory,
}

impl FileTable {
    /// Makes some pages busy that are in these frames, from index `from` on; returns where to look for more.
    /// Each ends with [`Self::move_page`].
    pub(crate) fn begin_moving<P: Platform>(
        &self,
        platform: &P,
        file: &FileClosed<'_>,
        frames: FrameRange,
        from: u64,
    ) -> (PageRuns, Option<u64>) {
        let mut cached = file.node().pages.lock(platform);
        let (mut runs, mut at) = (PageRuns::default(), from);
        for _ in 0..LOCK_HOLD_FRAMES {
            let Some((index, page)) = cached.next(at) else { return (runs, None) };
            if !page.is_busy() && frames.contains(page.frame()) {
                if !runs.add(index) {
                    break;
                }
                cached.set_busy(index, true);
            }
            at = index + 1;
        }
        (runs, Some(at))
    }

    /// Moves a page that the caller made busy and unmapped to another frame, of these nodes or near, and ends
    /// its busy state. Where there is no frame, the page is dropped if it can be read again and is not
    /// `locked`.
    pub(crate) fn move_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        (index, locked): (u64, bool),
        nodes: Option<NodePolicy>,
    ) -> MovedPage {
        let (node, platform) = (file.node(), pages.platform());
        let cached = node.pages.lock(platform);
        let Some(page) = cached.get(index) else { return MovedPage::Gone };
        drop(cached);
        let from = FrameRange::folio(page.frame(), Order::FRAME);
        let mapped = pages.counts().mapcount(page.frame()) != 0;
        let near = || NodePolicy::Preferred(pages.store().node_of_frame(page.frame()));
        let gfp = Gfp::USER.from_nodes(nodes.unwrap_or_else(near));
        let target = if mapped { None } else { pages.alloc(gfp, Order::FRAME).ok() };
        let target = target.and_then(|to| pages.requests().give_folio_to_file(to).ok());
        let target = target.map(|to| {
            pages.frames().hold(to.frames());
            // SAFETY: invariant 1: this task owns the target. The source is another frame, which the page cache has.
            unsafe { pages.frames().copy_frames(from, to.frame(), TouchHint::Unknown) };
            to.into_raw()
        });
        let mut cached = node.pages.lock(platform);
        cached.set_busy(index, false);
        if let Some(to) = target {
            cached.set_frame(index, to);
        } else if mapped {
            return MovedPage::Mapped;
        } else if locked || page.is_dirty() || !matches!(node.kind(), super::FileKind::Paged(_)) {
            return MovedPage::OutOfMemory;
        } else {
            cached.remove(index, |memory| self.free_radix(pages, memory));
            self.count_cached(node.kind(), -1);
        }
        drop(cached);
        // SAFETY: invariant 1: the page cache held the frame, and names it no more.
        unsafe { pages.counts().release(from) };
        MovedPage::Gone
    }

    /// The frame of a page that is in memory, not busy, and not cut off: a task that cuts a file short opens
    /// it again before it drops the pages behind the end.
    pub fn frame_of<P: Platform>(&self, platform: &P, file: &FileClosed<'_>, index: u64) -> Option<Frame> {
        let page = file.node().pages.lock(platform).get(index)?;
        (!page.is_busy() && !file.node().is_cut_off(index)).then_some(page.frame())
    }
}
