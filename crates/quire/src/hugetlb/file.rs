//! Files of huge pages: their pages come from a pool and go back to it.
//!
//! # Protocol
//!
//! A task that maps a file reserves pages of it, and a task that resizes it removes pages. Both need one
//! right ([`FileResize`]), so no two do either at once; faults fill in pages meanwhile. A task that fills or
//! changes one place of a file, or of a private mapping, *claims* the place first. So no two tasks take a
//! page for one place, and a reservation neither comes nor goes while its page is filled in. A fault does not
//! wait for a claim: it gives its locks back and tries again. (Linux: `hugetlb_fault_mutex_table`.)

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{Account, HugeGroup, HugePools, HugeSize};
use crate::error::AllocError;
use crate::filemap::{FileNode, FileResize, FileTable, HugePage};
use crate::limits::HUGE_FAULTS;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

/// An exclusive right for as long as it lives, such as to fill in one page. Its holder may block.
pub(crate) struct Claim<'a>(&'a AtomicBool);

impl<'a> Claim<'a> {
    fn of(place: &'a AtomicBool) -> Option<Self> {
        let claimed = place.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: dropping an unused value would end another task's claim.
        claimed.is_ok().then(|| Self(place))
    }

    pub(super) fn wait<P: Platform>(place: &'a AtomicBool, platform: &P) -> Self {
        loop {
            match Self::of(place) {
                Some(claim) => return claim,
                None => platform.relax(),
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Reservations of a file's pages that can still be dropped.
#[must_use = "reservations are kept or taken back"]
pub(crate) struct FileReservations<'f> {
    right: FileResize<'f>,
    indices: Range<u64>,
    size: HugeSize,
    account: Account,
}

impl HugePools<'_> {
    /// Claims a place of an object, unless it is claimed. The caller chooses the object's number.
    pub(crate) fn claim(&self, object: u64, index: u64) -> Option<Claim<'_>> {
        Claim::of(self.place(object, index))
    }

    fn place(&self, object: u64, index: u64) -> &AtomicBool {
        let hash = (object ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.faults[(hash >> 32) as usize % HUGE_FAULTS]
    }

    /// Waits for a claim. No deadlock: the claimant needs no lock or right that the caller may hold.
    fn wait_for_claim<P: Platform>(&self, platform: &P, object: u64, index: u64) -> Claim<'_> {
        Claim::wait(self.place(object, index), platform)
    }

    /// Reserves the pages of a file that are neither there nor reserved yet. The caller holds no lock.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub(crate) fn reserve_pages<'f, P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        right: FileResize<'f>,
        (size, indices): (HugeSize, Range<u64>),
        account: Account,
    ) -> Result<FileReservations<'f>, AllocError> {
        let missing = files.missing_huge_pages(pages.platform(), right.node(), &indices);
        self.charge_reservations(pages, size, account, missing)?;
        let reservations = FileReservations { right, indices, size, account };
        let noted = self.note_reservations(pages, files, &reservations);
        // Faults may have filled in pages meanwhile.
        let in_vain = missing - noted.unwrap_or_else(|noted| noted);
        self.return_reservations(pages, size, account, in_vain);
        if noted.is_ok() {
            return Ok(reservations);
        }
        self.drop_reservations(pages, files, reservations);
        Err(AllocError::OutOfMemory)
    }

    /// Notes the reservations with the file; returns how many were new, as an error if memory ran out.
    fn note_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        reservations: &FileReservations<'_>,
    ) -> Result<u64, u64> {
        let mut noted = 0;
        for index in reservations.indices.clone() {
            let _claim = self.wait_for_claim(pages.platform(), object_of(reservations.right.node()), index);
            let group = reservations.account.group.number();
            let new = files.reserve_huge_page(pages, &reservations.right, index, group);
            noted += u64::from(new.map_err(|_| noted)?);
        }
        Ok(noted)
    }

    pub(crate) fn keep_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        reservations: FileReservations<'_>,
    ) {
        files.keep_reservations(pages.platform(), &reservations.right, &reservations.indices);
    }

    /// Drops the reservations that were not used.
    pub(crate) fn drop_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        files: &FileTable,
        reservations: FileReservations<'_>,
    ) {
        let FileReservations { right, indices, size, account } = reservations;
        let mut dropped = 0;
        for index in files.fresh_reservations(pages.platform(), &right, indices) {
            let _claim = self.wait_for_claim(pages.platform(), object_of(right.node()), index);
            dropped += u64::from(files.drop_reservation(pages, &right, index));
        }
        self.return_reservations(pages, size, account, dropped);
    }

    fn return_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        count: u64,
    ) {
        self.uncharge_reservations(pages, size, account, (count, count));
    }

    /// Moves these pages of a file, and their reservations, back to the pool. No task maps or uses them, or
    /// can. Waits for CPUs that still count down their leaves.
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
            if let HugePage::Present { frame, .. } = page {
                pages.frames().wait_until_uncounted(frame, size.order(), file.may_have_small_leaves());
            }
            match page {
                HugePage::Reserved { group } => self.return_reservations(pages, size, of(group), 1),
                HugePage::Present { frame, reservation: Some(group) } => {
                    self.uncharge_reservations(pages, size, of(group), (1, 0));
                    self.offer(pages, frame, fs);
                    // SAFETY: invariant 1: the file gave the page up, and no leaf maps it.
                    unsafe { self.give_from(pages, size, frame, false) };
                }
                HugePage::Present { frame, reservation: None } => {
                    // SAFETY: invariant 1: the file gave the page up, and no leaf maps it.
                    unsafe { self.give_from(pages, size, frame, false) };
                }
            }
            since += 1;
            if since % crate::limits::HUGE_BATCH as u64 == 0 {
                pages.platform().reschedule_point();
            }
        }
    }
}

/// A file's number for [`HugePools::claim`].
pub(crate) fn object_of(file: &FileNode) -> u64 {
    core::ptr::from_ref(file).addr() as u64
}
