//! Looks up pages that are in the cache already.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::FileTable;
use super::file::{FileNode, FileUse};
use crate::addr::{Frame, FrameRange};
use crate::limits::LOCK_HOLD_FRAMES;
use crate::platform::Platform;

impl FileTable {
    /// Writes to `out` the frames of the pages from index `from` on that are in memory and not busy, and
    /// `None` for the others, in one hold of the file's lock.
    pub fn around<P: Platform>(
        &self,
        platform: &P,
        file: &FileUse<'_>,
        from: u64,
        out: &mut [Option<Frame>],
    ) {
        out.fill(None);
        let end = from + out.len() as u64;
        let cached = file.node().pages.lock(platform);
        cached.for_each(from..end, |index, page| {
            if !page.is_busy() && !page.is_lost() && !file.node().is_cut_off(index) {
                out[(index - from) as usize] = Some(page.frame());
            }
        });
    }

    /// The first of these pages that is in memory.
    pub(crate) fn next_present<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        pages: Range<u64>,
    ) -> Option<u64> {
        let next = file.pages.lock(platform).next(pages.start);
        next.map(|(index, _)| index).filter(|index| *index < pages.end)
    }

    /// The first of these pages that is not in memory. Holds the file's lock for a bounded number of pages at
    /// a time.
    pub(crate) fn next_missing<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        pages: Range<u64>,
    ) -> Option<u64> {
        let mut at = pages.start;
        while at < pages.end {
            let cached = file.pages.lock(platform);
            let end = pages.end.min(at + LOCK_HOLD_FRAMES as u64);
            while at < end {
                if cached.next(at).is_none_or(|(index, _)| index != at) {
                    return Some(at);
                }
                at += 1;
            }
        }
        None
    }

    /// Whether the pages from index `from` on are in memory, in these frames.
    pub fn holds<P: Platform>(&self, platform: &P, file: &FileNode, from: u64, frames: FrameRange) -> bool {
        let cached = file.pages.lock(platform);
        (0..frames.count)
            .all(|at| cached.get(from + at).is_some_and(|page| page.frame() == frames.start.add(at)))
    }

    /// Marks a page dirty that is about to be written through a mapping. Returns whether it is in memory.
    pub(crate) fn mark_dirty<P: Platform>(&self, platform: &P, file: &FileNode, index: u64) -> bool {
        file.pages.lock(platform).set_dirty(index, true)
    }

    /// Whether the page's contents are lost, if the page is in memory or being read.
    pub(crate) fn is_lost<P: Platform>(&self, platform: &P, file: &FileNode, index: u64) -> Option<bool> {
        file.pages.lock(platform).get(index).map(|page| page.is_lost())
    }

    /// How many pages of the file are in memory.
    pub fn resident<P: Platform>(&self, platform: &P, file: &FileNode) -> u64 {
        file.pages.lock(platform).len()
    }

    /// How many pages of the file are newer than what its pager has.
    pub fn dirty<P: Platform>(&self, platform: &P, file: &FileNode) -> u64 {
        file.pages.lock(platform).dirty()
    }
}
