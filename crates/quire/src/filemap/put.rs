//! Puts pages into the cache that somebody else has filled.
#![forbid(unsafe_code)]

use super::FileTable;
use super::file::{FileKind, FileUse};
use super::pages::CachedPage;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

impl FileTable {
    /// Makes a frame that the caller has just been handed, and has filled, this page of a nameless file; `false` when there is one
    /// already, and the frame is the caller's still.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; the frame is the caller's still.
    pub fn put_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
        frame: Frame,
    ) -> Result<bool, AllocError> {
        let node = file.node();
        debug_assert!(matches!(node.kind(), FileKind::Nameless { .. }), "others know their contents better");
        let mut cached = node.pages.lock(pages.platform());
        if cached.get(index).is_some() {
            return Ok(false);
        }
        let page = CachedPage::filled(frame, None);
        let free = |memory| self.free_radix(pages, memory);
        if !cached.insert(index, page, || self.alloc_radix(pages), free) {
            return Err(AllocError::OutOfMemory);
        }
        pages.hold_for_file(FrameRange::folio(frame, Order::FRAME));
        self.count_cached(node.kind(), 1);
        Ok(true)
    }
}
