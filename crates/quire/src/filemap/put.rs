//! Enters pages into the cache that the caller has filled.

use super::FileTable;
use super::collapse::NotMoved;
use super::file::{FileKind, FileNode, FileUse};
use super::pages::{CachedPage, FilePages};
use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::memmap::FrameMask;
use crate::page_alloc::{BlockReservation, PageAllocator};
use crate::platform::Platform;

impl FileTable {
    /// Makes a frame that the caller has just allocated and filled this page of a shmem file. Returns `false`
    /// when there is a page already; the frame is still the caller's then.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; the frame is still the caller's.
    pub(crate) fn put_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
        frame: Frame,
    ) -> Result<bool, AllocError> {
        let node = file.node();
        debug_assert!(matches!(node.kind(), FileKind::Shmem { .. }), "others know their contents better");
        let mut cached = node.pages.lock(pages.platform());
        if cached.get(index).is_some() {
            return Ok(false);
        }
        pages.requests().give_to_file(FrameRange::folio(frame, Order::FRAME))?;
        self.enter(pages, node, &mut cached, (index, CachedPage::filled(frame, None)))?;
        pages.frames().hold(FrameRange::folio(frame, Order::FRAME));
        Ok(true)
    }

    /// Makes the frame reserved for a page of a shmem file, which the caller has cleared, that page if it is
    /// missing.
    ///
    /// # Errors
    /// [`NotMoved`].
    pub(crate) fn fill_hole<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
        room: &mut BlockReservation,
    ) -> Result<(), NotMoved> {
        let (node, frame) = (file.node(), room.frame(index));
        debug_assert!(matches!(node.kind(), FileKind::Shmem { .. }), "others know their contents better");
        let mut cached = node.pages.lock(pages.platform());
        if node.ends_before(pages.platform(), index) {
            return Err(NotMoved::Missing);
        }
        if cached.get(index).is_some() || room.is_taken(index) {
            return Ok(());
        }
        if node.is_watched() {
            return Err(NotMoved::Watched);
        }
        if !pages.store().take_reserved(room, FrameMask::run(frame.index_in_block(), 1)) {
            return Err(NotMoved::Busy);
        }
        let entered = self.enter(pages, node, &mut cached, (index, CachedPage::filled(frame, None)));
        if entered.is_err() {
            // SAFETY: invariant 1: the frame was held when it left its room, and is not in the page cache.
            unsafe { pages.counts().release(FrameRange::folio(frame, Order::FRAME)) };
        }
        entered.map_err(|_| NotMoved::OutOfMemory)
    }

    /// Enters a page where there is none, under the file's lock.
    pub(super) fn enter<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        cached: &mut FilePages,
        (index, page): (u64, CachedPage),
    ) -> Result<(), AllocError> {
        let free = |memory| self.free_radix(pages, memory);
        if !cached.insert(index, page, || self.alloc_radix(pages), free) {
            return Err(AllocError::OutOfMemory);
        }
        self.count_cached(node.kind(), 1);
        Ok(())
    }
}
