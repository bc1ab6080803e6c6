//! Takes the end of a file out of memory.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::FileTable;
use super::file::FileResize;
use crate::addr::{FrameRange, Order};
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::tlb::words::words;

impl FileTable {
    /// Drops every page from index `end` on, dirty or not. They are cut off and unmapped; one that is just being written
    /// is waited for.
    pub fn drop_from<P: Platform>(&self, pages: &PageAllocator<'_, P>, resize: &FileResize<'_>, end: u64) {
        let (node, platform) = (resize.node(), pages.platform());
        debug_assert!(node.is_cut_off(end));
        loop {
            let mut dropped = 0;
            let mut cached = node.pages.lock(platform);
            let mut next = cached.next(end);
            while let Some((index, page)) =
                next.filter(|(_, page)| !page.is_busy() && dropped < LOCK_HOLD_FRAMES)
            {
                cached.remove(index, |memory| self.free_radix(pages, memory));
                pages.release(FrameRange::folio(page.frame(), Order::FRAME));
                dropped += 1;
                next = cached.next(end);
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

    /// Clears what the last page of a file of this size holds behind the end, if it is in memory.
    pub fn clear_end<P: Platform>(&self, platform: &P, resize: &FileResize<'_>, bytes: u64) {
        let (index, from) = (bytes / FRAME_SIZE, bytes % FRAME_SIZE);
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
        // By atomics: programs that map the page may store to it at the same time.
        let words = words(platform, frame);
        let first = (from / 8) as usize;
        words[first].fetch_and(u64::from_le((1 << (8 * (from % 8))) - 1), Ordering::Relaxed);
        words[first + 1..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        resize.node().pages.lock(platform).set_busy(index, false);
    }
}
