//! Drops clean pages, which can be read again.

use core::ops::Range;

use super::FileTable;
use super::file::{FileClosed, FileKind, FileNode};
use super::pages::{CachedPage, FilePages};
use crate::addr::{FrameRange, Order};
use crate::limits::{LOCK_HOLD_FRAMES, RECLAIM_RUNS};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

impl FileTable {
    /// Drops clean, unmapped pages until `wanted` frames are free. Returns how many were freed. Pages that were
    /// accessed through a leaf go only after all others: the first look takes their marks off.
    ///
    /// Called when memory is short, with no lock of rank `FileTable` or above held.
    pub fn reclaim<P: Platform>(&self, pages: &PageAllocator<'_, P>, wanted: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..2 {
            self.each_file(pages.platform(), |node| {
                if freed < wanted && matches!(node.kind(), FileKind::Paged(_)) {
                    freed += self.reclaim_file(pages, node, wanted - freed);
                }
            });
        }
        freed
    }

    /// Holds the file's lock over a bounded number of pages at a time.
    fn reclaim_file<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: &FileNode, wanted: u64) -> u64 {
        let (mut from, mut freed) = (Some(0), 0);
        while let Some(at) = from.filter(|_| freed < wanted) {
            let (next, more) = self.reclaim_some(pages, node, at, wanted - freed);
            (from, freed) = (next, freed + more);
        }
        self.count_cached(node.kind(), -(freed as i64));
        freed
    }

    /// Reclaims from index `from` on, in one hold of the lock; returns where to go on, and the freed frames.
    fn reclaim_some<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        from: u64,
        wanted: u64,
    ) -> (Option<u64>, u64) {
        let mut cached = node.pages.lock(pages.platform());
        if node.has_users() || node.is_collapsing() {
            return (None, 0);
        }
        let (mut at, mut freed) = (from, 0);
        for _ in 0..LOCK_HOLD_FRAMES {
            let Some((index, page)) = cached.next(at).filter(|_| freed < wanted) else {
                return (None, freed);
            };
            at = index + 1;
            if is_in_use(pages, page) {
                continue;
            }
            // SAFETY: invariant 3: the page cache has the page, under the file's lock, and keeps it if it was used.
            if !unsafe { pages.frames().take_accessed(page.frame()) } {
                freed += self.drop_page(pages, &mut cached, index, page);
            }
        }
        (Some(at), freed)
    }

    /// Drops a page that is not in use. Returns how many frames became free. Under the file's lock.
    fn drop_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        cached: &mut FilePages,
        index: u64,
        page: CachedPage,
    ) -> u64 {
        cached.remove(index, |memory| self.free_radix(pages, memory));
        // SAFETY: invariant 1: the page cache held the frame, and names it no more.
        unsafe { pages.counts().release(FrameRange::folio(page.frame(), Order::FRAME)) }
    }

    /// Some clean pages of a file from index `from` on, as ascending runs, and where to look for more.
    pub(crate) fn clean_runs<P: Platform>(
        &self,
        platform: &P,
        file: &FileClosed<'_>,
        from: u64,
    ) -> (PageRuns, Option<u64>) {
        let cached = file.node().pages.lock(platform);
        let (mut runs, mut at) = (PageRuns::default(), from);
        for _ in 0..LOCK_HOLD_FRAMES {
            let Some((index, page)) = cached.next(at) else { return (runs, None) };
            if !page.is_busy() && !page.is_dirty() && !runs.add(index) {
                break;
            }
            at = index + 1;
        }
        (runs, Some(at))
    }

    /// Drops those of these pages that are clean and no longer mapped; returns how many frames became free.
    pub(crate) fn drop_runs<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        runs: &PageRuns,
    ) -> u64 {
        let mut cached = file.node().pages.lock(pages.platform());
        let mut freed = 0;
        for index in runs.indices() {
            if let Some(page) = cached.get(index).filter(|&page| !is_in_use(pages, page)) {
                freed += self.drop_page(pages, &mut cached, index, page);
            }
        }
        drop(cached);
        self.count_cached(file.node().kind(), -(freed as i64));
        freed
    }
}

/// Whether a page must stay: it is busy, newer than its file, or mapped.
fn is_in_use<P: Platform>(pages: &PageAllocator<'_, P>, page: CachedPage) -> bool {
    page.is_busy() || page.is_dirty() || pages.counts().mapcount(page.frame()) != 0
}

/// Runs of pages of a file that a caller unmaps, moves or writes together.
#[derive(Default)]
pub struct PageRuns {
    runs: [Range<u64>; RECLAIM_RUNS],
    count: usize,
}

impl PageRuns {
    /// One run.
    pub fn of(pages: Range<u64>) -> Self {
        let mut runs = Self { count: 1, ..Self::default() };
        runs.runs[0] = pages;
        runs
    }

    /// The runs, in ascending order.
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.runs[..self.count]
    }

    /// Every page of them, in ascending order.
    pub fn indices(&self) -> impl Iterator<Item = u64> {
        self.as_slice().iter().flat_map(Range::clone)
    }

    /// From the first page to the last.
    pub(crate) fn hull(&self) -> Range<u64> {
        self.as_slice().first().map_or(0, |run| run.start)..self.as_slice().last().map_or(0, |run| run.end)
    }

    /// Adds a page behind all others; returns whether there was room.
    pub(super) fn add(&mut self, index: u64) -> bool {
        if let Some(last) = self.runs[..self.count].last_mut().filter(|last| last.end == index) {
            last.end += 1;
            return true;
        }
        let room = self.runs.get_mut(self.count);
        self.count += usize::from(room.is_some());
        room.map(|run| *run = index..index + 1).is_some()
    }
}
