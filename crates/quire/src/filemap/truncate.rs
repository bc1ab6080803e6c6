//! Drops or clears the end of a file.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::FileTable;
use super::file::{FileClosed, FileKind, FileNode, FileResize};
use super::pages::FilePages;
use crate::addr::{Frame, FrameRange, Order};
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::tlb::words::words;

impl FileTable {
    /// Drops every page from index `end` on, dirty or not. The caller has cut them off and unmapped them.
    /// Waits for pages that are being written.
    pub(crate) fn drop_from<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        resize: &FileResize<'_>,
        end: u64,
    ) {
        debug_assert!(resize.node().is_cut_off(end));
        self.drop_pages(pages, resize.node(), end..u64::MAX);
    }

    /// Drops these pages of a shmem file. The caller has unmapped them since it closed the file.
    pub(crate) fn drop_hole<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        hole: Range<u64>,
    ) {
        debug_assert!(matches!(file.node().kind(), FileKind::Shmem { .. }), "others have contents elsewhere");
        self.drop_pages(pages, file.node(), hole);
    }

    fn drop_pages<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: &FileNode, gone: Range<u64>) {
        let platform = pages.platform();
        loop {
            let mut dropped = 0;
            let mut cached = node.pages.lock(platform);
            let first = |cached: &FilePages| cached.next(gone.start).filter(|(index, _)| *index < gone.end);
            let mut next = first(&cached);
            while let Some((index, page)) =
                next.filter(|(_, page)| !page.is_busy() && dropped < LOCK_HOLD_FRAMES)
            {
                cached.remove(index, |memory| self.free_radix(pages, memory));
                // SAFETY: invariant 1: the page cache held the frame, and names it no more.
                unsafe { pages.counts().release(FrameRange::folio(page.frame(), Order::FRAME)) };
                dropped += 1;
                next = first(&cached);
            }
            drop(cached);
            self.count_cached(node.kind(), -(dropped as i64));
            if next.is_none() {
                return;
            }
            if dropped == 0 {
                platform.relax();
            }
        }
    }

    /// Clears the bytes behind the end of a file of this size in its last page, if that is in memory.
    pub(crate) fn clear_end<P: Platform>(&self, platform: &P, resize: &FileResize<'_>, bytes: u64) {
        let inside = (bytes % FRAME_SIZE) as usize..FRAME_SIZE as usize;
        self.clear_in_page(platform, resize, bytes / FRAME_SIZE, inside);
    }

    /// Clears a range of bytes of a page, if it is in memory.
    pub(crate) fn clear_in_page<P: Platform>(
        &self,
        platform: &P,
        resize: &FileResize<'_>,
        index: u64,
        bytes: Range<usize>,
    ) {
        let frame = loop {
            let mut cached = resize.node().pages.lock(platform);
            match cached.get(index) {
                None => return,
                Some(page) if page.is_busy() => {
                    drop(cached);
                    platform.relax();
                }
                Some(page) => {
                    cached.set_busy(index, true);
                    break page.frame();
                }
            }
        };
        self.clear_in_frame(platform, frame, bytes);
        resize.node().pages.lock(platform).set_busy(index, false);
    }

    /// Clears a range of bytes of a huge page that the file keeps.
    pub(crate) fn clear_in_huge_page<P: Platform>(&self, platform: &P, frame: Frame, bytes: Range<u64>) {
        let mut at = bytes.start;
        while at < bytes.end {
            let start = at - at % FRAME_SIZE;
            let end = bytes.end.min(start + FRAME_SIZE);
            let inside = (at - start) as usize..(end - start) as usize;
            self.clear_in_frame(platform, frame.add(at / FRAME_SIZE), inside);
            at = end;
        }
    }

    /// Copies the frame `from`, which no other code knows, to the frame `to` of a huge page. Programs that
    /// map that may store to it at the same time.
    pub(crate) fn copy_to_huge_page<P: Platform>(&self, platform: &P, from: Frame, to: Frame) {
        for (from, to) in words(platform, from).iter().zip(words(platform, to)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
