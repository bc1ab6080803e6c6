//! Files of huge pages: which pages are present, and which are only reserved, by index of a huge page. The
//! callers (`hugetlb`) take the pages from a pool and give them back to it.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::FileTable;
use super::file::{FileNode, FileResize};
use super::pages::CachedPage;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

/// The state of one huge page of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePage {
    /// The pool keeps a page for it, for which this group pays (0: none).
    Reserved {
        /// The group's number.
        group: u16,
    },
    /// The file has the page.
    Present {
        /// Its first frame.
        frame: Frame,
        /// The group that pays for the reservation that it redeemed, if any (0: none).
        reservation: Option<u16>,
    },
}

impl From<CachedPage> for HugePage {
    fn from(page: CachedPage) -> Self {
        let group = page.group();
        if page.is_reserved() {
            Self::Reserved { group }
        } else {
            Self::Present { frame: page.frame(), reservation: page.was_reserved().then_some(group) }
        }
    }
}

impl FileTable {
    /// The state of the file's huge page with this index, if it has one.
    pub(crate) fn huge_page<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        index: u64,
    ) -> Option<HugePage> {
        file.pages.lock(platform).get(index).map(HugePage::from)
    }

    /// Whether these frames are what the file's huge pages hold from page `from` of 4 KiB on.
    pub(crate) fn holds_huge<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        from: u64,
        frames: FrameRange,
    ) -> bool {
        let Some(each) = file.huge_order().map(Order::frames) else { return false };
        let first = from - from % each;
        (first..from + frames.count).step_by(each as usize).all(|start| {
            let begin = start.max(from);
            let stands = frames.start.add(begin - from);
            let page = self.huge_page(platform, file, start / each);
            matches!(page, Some(HugePage::Present { frame, .. }) if frame.add(begin - start) == stands)
        })
    }

    /// Counts the huge pages that the file has, and those reserved besides. Looks at each.
    pub(crate) fn count_huge_pages<P: Platform>(&self, platform: &P, file: &FileNode) -> (u64, u64) {
        each_entry(platform, file, 0..u64::MAX).fold((0, 0), |(there, reserved), (_, page)| {
            if page.is_reserved() { (there, reserved + 1) } else { (there + 1, reserved) }
        })
    }

    /// Counts those of these pages that are neither present nor reserved.
    pub(crate) fn missing_huge_pages<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        indices: &Range<u64>,
    ) -> u64 {
        indices.end - indices.start - each_entry(platform, file, indices.clone()).count() as u64
    }

    /// Notes that a page is reserved for which `group` pays, unless it is present or reserved already;
    /// returns whether it did. The caller can take it back until [`Self::keep_reservations`], and keeps all
    /// other tasks from filling the page.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn reserve_huge_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        right: &FileResize<'_>,
        index: u64,
        group: u16,
    ) -> Result<bool, AllocError> {
        let mut cached = right.node().pages.lock(pages.platform());
        if cached.get(index).is_some() {
            return Ok(false);
        }
        let reservation = CachedPage::reserved(group);
        self.enter(pages, right.node(), &mut cached, (index, reservation)).map(|()| true)
    }

    /// Makes fresh reservations permanent.
    pub(crate) fn keep_reservations<P: Platform>(
        &self,
        platform: &P,
        right: &FileResize<'_>,
        indices: &Range<u64>,
    ) {
        for index in self.fresh_reservations(platform, right, indices.clone()) {
            right.node().pages.lock(platform).settle(index);
        }
    }

    /// Which of these pages have a fresh reservation: one that can be taken back.
    pub(crate) fn fresh_reservations<'f, P: Platform>(
        &self,
        platform: &'f P,
        right: &'f FileResize<'_>,
        indices: Range<u64>,
    ) -> impl Iterator<Item = u64> + 'f {
        let all = each_entry(platform, right.node(), indices);
        all.filter(|(_, page)| page.is_fresh()).map(|(index, _)| index)
    }

    /// Takes a fresh reservation back, unless it was redeemed; returns whether it did. The caller keeps all
    /// other tasks from filling the page.
    pub(crate) fn drop_reservation<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        right: &FileResize<'_>,
        index: u64,
    ) -> bool {
        let mut cached = right.node().pages.lock(pages.platform());
        let fresh = cached.get(index).is_some_and(CachedPage::is_fresh);
        if fresh {
            cached.remove(index, |memory| self.free_radix(pages, memory));
        }
        fresh
    }

    /// Enters a page that is not present. The caller keeps all other tasks from doing the same.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn put_huge_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileNode,
        index: u64,
        frame: Frame,
    ) -> Result<(), AllocError> {
        let mut cached = file.pages.lock(pages.platform());
        let before = cached.get(index);
        let page = CachedPage::filled(frame, before);
        debug_assert!(before.is_none_or(CachedPage::is_reserved));
        if before.is_some() && cached.replace(index, page) {
            return Ok(());
        }
        self.enter(pages, file, &mut cached, (index, page))
    }

    /// The index of the huge page that starts at this frame. Looks at each page of the file.
    pub(crate) fn find_huge_page<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        frame: Frame,
    ) -> Option<u64> {
        let is_there = |page: &CachedPage| !page.is_reserved() && page.frame() == frame;
        each_entry(platform, file, 0..u64::MAX).find(|(_, page)| is_there(page)).map(|(index, _)| index)
    }

    /// Puts another frame into the place of a page that is present. The caller has closed the file.
    pub(crate) fn exchange_huge_page<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        index: u64,
        frame: Frame,
    ) {
        file.pages.lock(platform).set_frame(index, frame);
    }

    /// Takes out the first of these pages that is present or reserved. No task uses it or will; no leaf maps
    /// it.
    pub(crate) fn take_huge_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: &FileNode,
        indices: &Range<u64>,
    ) -> Option<HugePage> {
        let mut cached = file.pages.lock(pages.platform());
        let (index, _) = cached.next(indices.start).filter(|(index, _)| *index < indices.end)?;
        cached.remove(index, |memory| self.free_radix(pages, memory)).map(HugePage::from)
    }
}

/// The file's entries for these pages, in order. Takes the file's lock for each.
fn each_entry<'f, P: Platform>(
    platform: &'f P,
    file: &'f FileNode,
    mut indices: Range<u64>,
) -> impl Iterator<Item = (u64, CachedPage)> + 'f {
    core::iter::from_fn(move || {
        let next = file.pages.lock(platform).next(indices.start);
        let (index, page) = next.filter(|(index, _)| *index < indices.end)?;
        indices.start = index + 1;
        Some((index, page))
    })
}
