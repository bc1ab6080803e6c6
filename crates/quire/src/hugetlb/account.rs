//! What is charged for pages: the group of the process, and the file system of the file, beside the pool
//! itself.
//!
//! What is reserved is charged to the group as a reservation and counts in the file system, whether it is
//! used yet or not; a page that is used without a reservation counts in the file system alone. Every page in
//! use is charged to the group of the process that touched it first. A page knows what it owes ([`Owed`]), so
//! that any task that sees it go can settle it.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::file::Claim;
use super::{Charge, HugeGroup, HugePools, HugeSize};
use crate::addr::Frame;
use crate::error::AllocError;
use crate::page_alloc::{NodeSet, PageAllocator};
use crate::platform::Platform;

/// What is charged: a group, and the number of a file system (0: none).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// The group of the process.
    pub group: HugeGroup,
    /// The file system.
    pub fs: u8,
}

/// What is to be settled when a page goes, as it is noted with the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owed {
    /// The group that is charged for its use.
    group: HugeGroup,
    /// The file system that counts it by itself: not because of a reservation.
    fs: u8,
}

impl Owed {
    const fn to_note(self) -> u64 {
        self.group.number() as u64 | (self.fs as u64) << 8
    }

    const fn from_note(note: u64) -> Self {
        Self { group: HugeGroup::from_number(note as u8), fs: (note >> 8) as u8 }
    }
}

impl HugePools {
    /// Reserves pages for what is charged for them.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: a limit would be passed, or the pool has too few. Nothing has changed then.
    pub(crate) fn charge_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        count: u64,
    ) -> Result<(), AllocError> {
        let charged = self.charge(account.group, size, Charge::Reservation, count);
        charged.map_err(|_| AllocError::OutOfMemory)?;
        let reserved = self.use_fs(pages.platform(), account.fs, count).and_then(|needed| {
            self.reserve(pages, size, needed).inspect_err(|_| {
                self.leave_fs(pages.platform(), account.fs, count);
            })
        });
        reserved.inspect_err(|_| self.uncharge(account.group, size, Charge::Reservation, count))
    }

    /// `count` pages are no longer reserved, of which `unused` were not redeemed; the others are about to go
    /// back to the pool. How many of those the pool must keep for the file system: they are to be given back
    /// as reserved.
    #[must_use = "the file system counts on what is kept for it"]
    pub(crate) fn uncharge_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        (count, unused): (u64, u64),
    ) -> u64 {
        self.uncharge(account.group, size, Charge::Reservation, count);
        let kept = self.leave_fs(pages.platform(), account.fs, count);
        self.unreserve(pages, size, unused.saturating_sub(kept));
        kept.saturating_sub(unused)
    }

    /// A page to be used by a process, reserved to it or not, from these nodes. Its contents are undefined.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: a limit would be passed, or there is none.
    pub(crate) fn take_for<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        reserved: bool,
    ) -> Result<Frame, AllocError> {
        let charged = self.charge(account.group, size, Charge::Usage, 1);
        charged.map_err(|_| AllocError::OutOfMemory)?;
        let fs = if reserved { 0 } else { account.fs };
        // What the pool keeps for the file system is reserved, too.
        let needed = if reserved { Ok(0) } else { self.use_fs(pages.platform(), fs, 1) };
        let taken = needed.and_then(|needed| {
            self.take(pages, size, NodeSet::ALL, needed == 0).inspect_err(|_| {
                self.leave_fs(pages.platform(), fs, 1);
            })
        });
        match taken {
            Ok(frame) => {
                pages
                    .frames()
                    .huge_note(frame)
                    .store(Owed { group: account.group, fs }.to_note(), Ordering::Relaxed);
                Ok(frame)
            }
            Err(error) => {
                self.uncharge(account.group, size, Charge::Usage, 1);
                Err(error)
            }
        }
    }

    /// Gives a page back that no leaf maps, and settles what it owes. `reserved`: the reservation that it
    /// redeemed holds again.
    pub(crate) fn give_from<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
        reserved: bool,
    ) {
        let Owed { group, fs } = Owed::from_note(pages.frames().huge_note(frame).load(Ordering::Relaxed));
        let kept = self.leave_fs(pages.platform(), fs, 1) > 0;
        self.uncharge(group, size, Charge::Usage, 1);
        self.give(pages, size, frame, reserved || kept);
    }

    /// Takes in the pages that were lent to leaves, the last of which is gone. All that were gone before the
    /// call are in their pool when it returns, whichever task took them in: what they were reserved counts.
    pub(crate) fn take_returned<P: Platform>(&self, pages: &PageAllocator<'_, P>) {
        let _right = Claim::wait(&self.returning, pages.platform());
        if pages.counts().has_returned_huge() {
            pages.counts().returned_huge(|frame, order, reserved| {
                if let Some(size) = HugeSize::of_order(order) {
                    self.give_from(pages, size, frame, reserved);
                }
            });
        }
    }
}
