//! Drops or clears the end of a file.

use core::ops::Range;
use core::sync::atomic::Ordering;

use super::FileTable;
use super::file::FileResize;
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
                // SAFETY: invariant 1: the page cache held the frame, and names it no more.
                unsafe { pages.counts().release(FrameRange::folio(page.frame(), Order::FRAME)) };
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

    /// Clears the bytes behind the end of a file of this size in its last page, if that is in memory.
    pub(crate) fn clear_end<P: Platform>(&self, platform: &P, resize: &FileResize<'_>, bytes: u64) {
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
        clear_bytes(platform, frame, from..FRAME_SIZE);
        resize.node().pages.lock(platform).set_busy(index, false);
    }

    /// Clears a range of bytes of a huge page that the file keeps.
    pub(crate) fn clear_in_huge_page<P: Platform>(&self, platform: &P, frame: Frame, bytes: Range<u64>) {
        let mut at = bytes.start;
        while at < bytes.end {
            let start = at - at % FRAME_SIZE;
            let end = bytes.end.min(start + FRAME_SIZE);
            clear_bytes(platform, frame.add(at / FRAME_SIZE), at - start..end - start);
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

/// Clears bytes of a frame, by atomics: programs that map it may store to it at the same time.
fn clear_bytes<P: Platform>(platform: &P, frame: Frame, bytes: Range<u64>) {
    let words = words(platform, frame);
    // A mask of the bytes of a word that stay.
    let kept = |word: u64| {
        let stays = |byte: &u64| !bytes.contains(&(word * 8 + byte));
        (0..8).filter(stays).fold(0, |mask, byte| mask | 0xff << (8 * byte))
    };
    for word in bytes.start / 8..bytes.end.div_ceil(8) {
        match kept(word) {
            0 => words[word as usize].store(0, Ordering::Relaxed),
            mask => _ = words[word as usize].fetch_and(u64::from_le(mask), Ordering::Relaxed),
        }
    }
}
