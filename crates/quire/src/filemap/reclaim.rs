//! Drops pages that can be had again.
#![forbid(unsafe_code)]

use super::FileTable;
use super::file::{FileKind, FileNode};
use crate::addr::{FrameRange, Order};
use crate::limits::LOCK_HOLD_FRAMES;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

impl FileTable {
    /// Drops clean pages that nobody maps until `wanted` frames are free. How many were.
    ///
    /// Called when memory is short, with no lock of rank `FileTable` or above held.
    pub fn reclaim<P: Platform>(&self, pages: &PageAllocator<'_, P>, wanted: u64) -> u64 {
        let mut freed = 0;
        self.each_file(pages.platform(), |node| {
            if freed < wanted && matches!(node.kind(), FileKind::Paged(_)) {
                freed += self.reclaim_file(pages, node, wanted - freed);
            }
        });
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

    /// Looks at as many pages as one hold of a lock may take, from an index on. Where to go on, and how many were freed.
    fn reclaim_some<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        from: u64,
        wanted: u64,
    ) -> (Option<u64>, u64) {
        let mut cached = node.pages.lock(pages.platform());
        if node.has_users() {
            return (None, 0);
        }
        let (mut at, mut freed) = (from, 0);
        for _ in 0..LOCK_HOLD_FRAMES {
            let Some((index, page)) = cached.next(at).filter(|_| freed < wanted) else {
                return (None, freed);
            };
            at = index + 1;
            if !page.is_busy() && !page.is_dirty() && pages.mapcount(page.frame()) == 0 {
                cached.remove(index, |memory| self.free_radix(pages, memory));
                freed += pages.release(FrameRange::folio(page.frame(), Order::FRAME));
            }
        }
        (Some(at), freed)
    }
}
