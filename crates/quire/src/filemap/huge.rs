//! Files of huge pages: which of their pages there are, and which are only reserved. By index of a huge page.
//! The pages are taken from a pool, and go back to it, by the callers of these (`hugetlb`).
#![forbid(unsafe_code)]

use core::ops::Range;

use super::FileTable;
use super::file::{FileNode, FileResize};
use super::pages::CachedPage;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

/// What a file has of one of its huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePage {
    /// It is reserved: the pool keeps one for it, for which this group pays (0: none).
    Reserved {
        /// The group's number.
        group: u8,
    },
    /// It is there.
    Present {
        /// Its first frame.
        frame: Frame,
        /// The group that pays for the reservation that it redeemed, if it was reserved (0: none).
        reservation: Option<u8>,
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
    /// What the file has of its huge page with this index, if anything.
    pub(crate) fn huge_page<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        index: u64,
    ) -> Option<HugePage> {
        file.pages.lock(platform).get(index).map(HugePage::from)
    }

    /// Whether what huge pages hold from page `from` of 4 KiB on stands in these frames.
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

    /// How many huge pages the file has, and how many more are reserved. Looks at each.
    pub(crate) fn count_huge_pages<P: Platform>(&self, platform: &P, file: &FileNode) -> (u64, u64) {
        each_entry(platform, file, 0..u64::MAX).fold((0, 0), |(there, reserved), (_, page)| {
            if page.is_reserved() { (there, reserved + 1) } else { (there + 1, reserved) }
        })
    }

    /// How many of these pages are neither there nor reserved.
    pub(crate) fn missing_huge_pages<P: Platform>(
        &self,
        platform: &P,
        file: &FileNode,
        indices: &Range<u64>,
    ) -> u64 {
        indices.end - indices.start - each_entry(platform, file, indices.clone()).count() as u64
    }

    /// Notes that a page is reserved for which `group` pays, unless it is there or reserved already; whether
    /// it was not. It can be taken back until [`Self::keep_reservations`]. The caller keeps all other tasks
    /// from filling the page in.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn reserve_huge_page<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        right: &FileResize<'_>,
        index: u64,
        group: u8,
    ) -> Result<bool, AllocError> {
        let mut cached = right.node().pages.lock(pages.platform());
        if cached.get(index).is_some() {
            return Ok(false);
        }
        let reservation = CachedPage::reserved(group);
        self.enter(pages, right.node(), &mut cached, (index, reservation)).map(|()| true)
    }

    /// What was reserved last is there to stay.
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

    /// Which of these pages were reserved last.
    pub(crate) fn fresh_reservations<'f, P: Platform>(
        &self,
        platform: &'f P,
        right: &'f FileResize<'_>,
        indices: Range<u64>,
    ) -> impl Iterator<Item = u64> + 'f {
        let all = each_entry(platform, right.node(), indices);
        all.filter(|(_, page)| page.is_fresh()).map(|(index, _)| index)
    }

    /// Takes a reservation back that was made last, unless it was redeemed; whether it was not. The caller
    /// keeps all other tasks from filling the page in.
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

    /// Enters a page that is not there. The caller keeps all other tasks from doing the same.
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

    /// Takes the first of these pages out that is there or reserved. No task uses it or will, and no leaf
    /// maps it.
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

/// What the file has of these pages, there or reserved, in order. The file's lock is held for each by itself.
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
