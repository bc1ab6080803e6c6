//! Writes dirty pages back.

use core::sync::atomic::Ordering;

use super::FileTable;
use super::file::{FileKind, FileNode};
use crate::error::MmError;
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::page_alloc::PageAllocator;
use crate::platform::{Pager, Platform};

impl FileTable {
    /// Marks pages dirty to which mappings that are gone have stored since the pages were marked clean.
    fn collect_dirty<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: &FileNode) {
        let mut next = Some(0);
        while let Some(from) = next.take() {
            let mut cached = node.pages.lock(pages.platform());
            let mut at = from;
            for _ in 0..LOCK_HOLD_FRAMES {
                let Some((index, page)) = cached.next(at) else { return };
                at = index + 1;
                if super::reclaim::take_dirty(pages, page) {
                    cached.set_dirty(index, true);
                }
            }
            next = Some(at);
        }
    }

    /// Writes every dirty page of the file to its pager and marks it clean. May block in the pager. Pages that mappings
    /// write to at the same time may stay newer than what was written, without a mark: the caller sees to it that there
    /// are none, or that it does not matter.
    ///
    /// # Errors
    /// [`MmError::Io`] when a page could not be written; it stays dirty, and the others are written all the same.
    pub fn write_back<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
    ) -> Result<(), MmError> {
        let FileKind::Paged(file) = node.kind() else { return Ok(()) };
        let platform = pages.platform();
        if node.synced.swap(true, Ordering::AcqRel) {
            self.collect_dirty(pages, node);
        }
        let (mut from, mut outcome) = (0, Ok(()));
        loop {
            let mut cached = node.pages.lock(platform);
            if cached.dirty() == 0 {
                return outcome;
            }
            let Some((index, page)) = cached.next(from) else { return outcome };
            from = index + 1;
            if !page.is_dirty() || page.is_busy() {
                continue;
            }
            cached.set_dirty(index, false);
            cached.set_busy(index, true);
            drop(cached);
            // SAFETY: the direct map gives the frame's 4096 bytes, and the busy mark keeps the frame in the cache and
            // other tasks from using it (protocol in the module's head).
            let bytes =
                unsafe { &*platform.direct_map(page.frame().addr()).cast::<[u8; FRAME_SIZE as usize]>() };
            let written = platform.pager().write(file, index, bytes);
            let mut cached = node.pages.lock(platform);
            cached.set_busy(index, false);
            // What was cut off meanwhile need not be written.
            if written.is_err() && index < node.size(platform).div_ceil(FRAME_SIZE) {
                cached.set_dirty(index, true);
                outcome = Err(MmError::Io);
            }
        }
    }
}
