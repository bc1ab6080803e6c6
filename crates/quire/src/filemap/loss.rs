//! Pages whose memory went bad.

use super::FileTable;
use super::file::{FileClosed, FileKind};
use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::limits::LOCK_HOLD_FRAMES;
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::Platform;

/// The contents that are lost with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostPage {
    /// None: the pager can read them again.
    Nothing,
    /// Those stored since the page was written to its file.
    Stores,
    /// All. This frame stands in for the page, so that a task that wants the page learns of the loss.
    All(Frame),
}

impl LostPage {
    /// Whether the page held the only copy of its contents.
    pub(crate) fn is_last_copy(self) -> bool {
        self != Self::Nothing
    }
}

/// The place of the page that a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundPage {
    /// In the file at this index; the caller has made it busy.
    Found(u64),
    /// In the file; another task reads, writes or moves it.
    Busy,
    /// At or behind this index, if it is in the file.
    NotBefore(u64),
    /// Not in the file.
    Elsewhere,
}

impl FileTable {
    /// Searches some pages from index `from` on for the one in this frame, and makes it busy.
    pub(crate) fn begin_loss<P: Platform>(
        &self,
        platform: &P,
        file: &FileClosed<'_>,
        frame: Frame,
        from: u64,
    ) -> FoundPage {
        let mut cached = file.node().pages.lock(platform);
        let mut at = from;
        for _ in 0..LOCK_HOLD_FRAMES {
            match cached.next(at) {
                None => return FoundPage::Elsewhere,
                Some((index, page)) if page.frame() != frame => at = index + 1,
                Some((_, page)) if page.is_busy() => return FoundPage::Busy,
                Some((index, _)) => {
                    cached.set_busy(index, true);
                    return FoundPage::Found(index);
                }
            }
        }
        FoundPage::NotBefore(at)
    }

    /// Finds out what is lost with a page that the caller has made busy.
    ///
    /// # Errors
    /// [`AllocError`] when there is no frame to stand in for a page without a pager; the page is not busy
    /// then.
    pub(crate) fn prepare_loss<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        index: u64,
    ) -> Result<LostPage, AllocError> {
        if matches!(file.node().kind(), FileKind::Paged(_)) {
            let page = file.node().pages.lock(pages.platform()).get(index);
            let dirty = page.is_some_and(super::pages::CachedPage::is_dirty);
            return Ok(if dirty { LostPage::Stores } else { LostPage::Nothing });
        }
        let found = pages.requests().alloc_zero_page(Gfp::USER);
        let found = found.and_then(|folio| pages.requests().give_folio_to_file(folio));
        if found.is_err() {
            file.node().pages.lock(pages.platform()).set_busy(index, false);
        }
        let frame = found?.into_raw();
        pages.frames().hold(FrameRange::folio(frame, Order::FRAME));
        Ok(LostPage::All(frame))
    }

    /// Keeps the page, because a leaf still maps it.
    pub(crate) fn call_off<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        index: u64,
        loss: LostPage,
    ) {
        file.node().pages.lock(pages.platform()).set_busy(index, false);
        if let LostPage::All(frame) = loss {
            // SAFETY: invariant 1: `prepare_loss` held the frame, and nothing else names it.
            unsafe { pages.counts().release(FrameRange::folio(frame, Order::FRAME)) };
        }
    }

    /// Takes out a page that the caller has made busy and unmapped. Its frame stays held, for the caller.
    pub fn lose<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileClosed<'_>,
        index: u64,
        loss: LostPage,
    ) {
        let mut cached = file.node().pages.lock(pages.platform());
        if let LostPage::All(frame) = loss {
            cached.set_frame(index, frame);
            cached.set_lost(index);
            cached.set_busy(index, false);
            return;
        }
        cached.remove(index, |memory| self.free_radix(pages, memory));
        drop(cached);
        self.count_cached(file.node().kind(), -1);
    }
}
