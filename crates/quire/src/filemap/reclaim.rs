//! Drops pages that can be had again.

use super::FileTable;
use super::file::{FileKind, FileNode};
use crate::addr::{FrameRange, Order};
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

    fn reclaim_file<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: &FileNode, wanted: u64) -> u64 {
        let mut cached = node.pages.lock(pages.platform());
        if node.has_users() {
            return 0;
        }
        let (mut from, mut freed) = (0, 0);
        while freed < wanted {
            let Some((index, page)) = cached.next(from) else { break };
            from = index + 1;
            if page.is_busy() || page.is_dirty() || pages.mapcount(page.frame()) != 0 {
                continue;
            }
            cached.remove(index, |memory| self.free_radix(pages, memory));
            freed += pages.release(FrameRange::folio(page.frame(), Order::FRAME));
        }
        self.count_cached(node.kind(), -(freed as i64));
        freed
    }
}
