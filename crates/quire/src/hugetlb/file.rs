//! Files of huge pages: their pages come from a pool and go back to it.
//!
//! # Protocol
//!
//! Who maps a file promises pages of it, and who changes its size takes some out, under one right
//! ([`FileResize`]), so that no two do either at once. Faults fill pages in beside them: they *claim* the page first, so
//! that no two take a page for the same place, of which one would redeem a promise that is somebody else's. A claim is not
//! waited for: who finds it taken gives his locks back and tries again. (In Linux: `hugetlb_fault_mutex_table`.)
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{Account, HugeGroup, HugePools, HugeSize};
use crate::error::AllocError;
use crate::filemap::{FileNode, FileResize, FileTable, HugePage};
use crate::limits::HUGE_FAULTS;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

/// The right to fill one page in, for as long as it lives.
pub(crate) struct Claim<'a>(&'a AtomicBool);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Promises of a file's pages that can be taken back still.
#[must_use = "promises are kept or taken back"]
pub(crate) struct FilePromises<'f> {
    pub(crate) right: FileResize<'f>,
    indices: Range<u64>,
    size: HugeSize,
    account: Account,
}

impl HugePools {
    /// Claims the page with this index of an object, whatever that number stands for, unless it is claimed.
    pub(crate) fn claim(&self, object: u64, index: u64) -> Option<Claim<'_>> {
        let hash = (object ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &self.faults[(hash >> 32) as usize % HUGE_FAULTS];
        place
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some(Claim(place))
    }

    /// Promises those of a file's pages that are neither there nor promised yet. The caller holds no lock.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub(crate) fn promise_pages<'f, P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        right: FileResize<'f>,
        (size, indices): (HugeSize, Range<u64>),
        account: Account,
    ) -> Result<FilePromises<'f>, AllocError> {
        let missing = files.missing_huge_pages(pages.platform(), right.node(), &indices);
        self.promise(pages, size, account, missing)?;
        let (noted, all) = files.promise_huge_pages(pages, &right, &indices, account.group.number());
        // Others may have filled pages in meanwhile.
        self.take_promises_back(pages, size, account, missing - noted);
        let promises = FilePromises { right, indices, size, account };
        if all {
            return Ok(promises);
        }
        self.drop_promises(pages, files, promises);
        Err(AllocError::OutOfMemory)
    }

    /// The promises stand.
    pub(crate) fn keep_promises<'f, P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        promises: FilePromises<'f>,
    ) {
        files.keep_promises(pages.platform(), &promises.right, &promises.indices);
    }

    /// Takes the promises back, as far as nobody has redeemed them.
    pub(crate) fn drop_promises<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        promises: FilePromises<'_>,
    ) {
        let dropped = files.drop_promises(pages, &promises.right, &promises.indices);
        self.take_promises_back(pages, promises.size, promises.account, dropped);
    }

    fn take_promises_back<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        count: u64,
    ) {
        let more = self.unpromise(pages, size, account, (count, count));
        debug_assert_eq!(more, 0, "what was not used can be kept");
    }

    /// Takes these pages of a file out of it, and back into the pool, promises too. Nobody maps them, uses them, or can.
    pub(crate) fn drop_pages<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        (file, fs): (&FileNode, u8),
        (size, indices): (HugeSize, Range<u64>),
    ) {
        let of = |group| Account { group: HugeGroup::from_number(group), fs };
        let mut since = 0;
        while let Some(page) = files.take_huge_page(pages, file, &indices) {
            match page {
                HugePage::Promised { group } => self.take_promises_back(pages, size, of(group), 1),
                HugePage::Present { frame, promise: Some(group) } => {
                    let kept = self.unpromise(pages, size, of(group), (1, 0));
                    self.give_from(pages, size, frame, kept > 0);
                }
                HugePage::Present { frame, promise: None } => self.give_from(pages, size, frame, false),
            }
            since += 1;
            if since % crate::limits::HUGE_BATCH as u64 == 0 {
                pages.platform().reschedule_point();
            }
        }
    }
}
