//! Brings pages into the cache.

use super::FileTable;
use super::file::{FileKind, FileNode, FileUse};
use super::pages::CachedPage;
use super::radix::INDEX_END;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::FaultError;
use crate::limits::FRAME_SIZE;
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::{Pager, PagerError, Platform};

/// A page that is in the cache and not busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Its frame.
    pub frame: Frame,
    /// Whether the pager had to read it.
    pub major: bool,
}

impl FileTable {
    /// The page with this index, unless the pager would have to read it, or another task uses it alone.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub(crate) fn page_at_hand<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
    ) -> Result<Option<Frame>, FaultError> {
        let node = file.node();
        if !matches!(node.kind(), FileKind::Paged(_)) {
            return self.page(pages, file, index).map(|page| Some(page.frame));
        }
        if node.is_cut_off(index) {
            return Err(FaultError::BeyondEnd);
        }
        match node.pages.lock(pages.platform()).get(index) {
            Some(page) if page.is_lost() => Err(FaultError::Poisoned),
            page => Ok(page.filter(|page| !page.is_busy()).map(CachedPage::frame)),
        }
    }

    /// The page with this index; reads it if it is not there, and waits while another task reads it.
    ///
    /// May block in the pager: the caller holds no lock.
    ///
    /// # Errors
    /// [`FaultError::BeyondEnd`], [`FaultError::Io`], [`FaultError::Poisoned`], [`FaultError::OutOfMemory`];
    /// the cache is as before then.
    pub fn page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
    ) -> Result<Filled, FaultError> {
        self.page_up_to(pages, file, index, |node, platform| node.size(platform).div_ceil(FRAME_SIZE))
    }

    /// The same for a page that may lie behind the end: the caller has the right to resize the file, and
    /// moves the end behind the page next.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub(crate) fn page_behind_end<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
    ) -> Result<Filled, FaultError> {
        self.page_up_to(pages, file, index, |_, _| INDEX_END)
    }

    fn page_up_to<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileUse<'_>,
        index: u64,
        end: impl Fn(&FileNode, &P) -> u64,
    ) -> Result<Filled, FaultError> {
        let (node, platform) = (file.node(), pages.platform());
        debug_assert!(node.huge_order().is_none(), "huge pages come from their pool");
        loop {
            if node.is_cut_off(index) {
                return Err(FaultError::BeyondEnd);
            }
            let found = node.pages.lock(platform).get(index);
            match found {
                Some(page) if page.is_lost() => return Err(FaultError::Poisoned),
                Some(page) if !page.is_busy() => return Ok(Filled { frame: page.frame(), major: false }),
                Some(_) => platform.relax(),
                None => {
                    if index >= end(node, platform).min(INDEX_END) {
                        return Err(FaultError::BeyondEnd);
                    }
                    if let Some(frame) = self.bring_in(pages, node, index)? {
                        return Ok(Filled { frame, major: matches!(node.kind(), FileKind::Paged(_)) });
                    }
                }
            }
        }
    }

    /// Brings in a page that was missing; `None` when another task was faster.
    fn bring_in<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        index: u64,
    ) -> Result<Option<Frame>, FaultError> {
        let folio = match node.kind() {
            FileKind::Paged(_) => pages.alloc(Gfp::USER, Order::FRAME)?,
            FileKind::Shmem { .. } | FileKind::Huge { .. } => pages.requests().alloc_zero_page(Gfp::USER)?,
        };
        let published = self.publish(pages, node, index, folio.frame());
        let Ok(true) = published else {
            let freed = match node.kind() {
                FileKind::Paged(_) => pages.free(folio),
                FileKind::Shmem { .. } | FileKind::Huge { .. } => pages.requests().free_zeroed(folio),
            };
            debug_assert_eq!(freed, Ok(()), "a frame that was just handed out");
            return published.map(|_| None);
        };
        // The page cache owns it from now on.
        let frame = folio.into_raw();
        let read = read_page(pages, node.kind(), index, frame);
        let mut cached = node.pages.lock(pages.platform());
        if read.is_ok() {
            cached.set_busy(index, false);
            return Ok(Some(frame));
        }
        cached.remove(index, |memory| self.free_radix(pages, memory));
        drop(cached);
        self.count_cached(node.kind(), -1);
        // SAFETY: invariant 1: the page cache held the frame, and names it no more.
        unsafe { pages.counts().release(FrameRange::folio(frame, Order::FRAME)) };
        read.map(|()| None)
    }

    /// Enters a busy page; returns `false` when there is a page already.
    fn publish<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        index: u64,
        frame: Frame,
    ) -> Result<bool, FaultError> {
        let mut cached = node.pages.lock(pages.platform());
        if cached.get(index).is_some() {
            return Ok(false);
        }
        pages.requests().give_to_file(FrameRange::folio(frame, Order::FRAME))?;
        self.enter(pages, node, &mut cached, (index, CachedPage::busy(frame)))?;
        pages.frames().hold(FrameRange::folio(frame, Order::FRAME));
        Ok(true)
    }
}

fn read_page<P: Platform>(
    pages: &PageAllocator<'_, P>,
    kind: FileKind,
    index: u64,
    frame: Frame,
) -> Result<(), FaultError> {
    let platform = pages.platform();
    // The frame of a shmem file's page was allocated as zeroes.
    let FileKind::Paged(file) = kind else { return Ok(()) };
    // SAFETY: invariant 1: the direct map gives the frame's 4096 bytes; the busy mark makes them this task's
    // alone (protocol in the module's head), and no leaf maps them yet.
    let bytes = unsafe { &mut *platform.direct_map(frame.addr()).cast::<[u8; FRAME_SIZE as usize]>() };
    platform.pager().read(file, index, bytes).map_err(|error| match error {
        PagerError::Io => FaultError::Io,
        PagerError::BeyondEnd => FaultError::BeyondEnd,
    })
}
