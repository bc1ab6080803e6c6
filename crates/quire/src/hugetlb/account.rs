//! Charges huge pages to the process's group and the file's file system, beside the pool.
//!
//! A reservation is charged to the group and counts in the file system, used or not; a page used without a
//! reservation counts in the file system. Besides, every page in use is charged to the group of the process
//! that touched it first. Each page notes its charges ([`Owed`]): any task that gives it back can undo them.

use core::sync::atomic::Ordering;

use super::file::Claim;
use super::replace::OtherPage;
use super::{Charge, HugeGroup, HugePools, HugeSize};
use crate::addr::Frame;
use crate::error::AllocError;
use crate::page_alloc::{NodePolicy, PageAllocator};
use crate::platform::Platform;

/// The group and the file system that are charged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// The group of the process.
    pub group: HugeGroup,
    /// The number of the file system (0: none).
    pub fs: u8,
}

/// A page that a process needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HugeRequest {
    pub(crate) account: Account,
    /// It uses up a reservation.
    pub(crate) reserved: bool,
    pub(crate) nodes: NodePolicy,
    /// Where nodes take turns, whose turn it is.
    pub(crate) turn: u64,
}

/// The charges to undo when a page is given back, as noted with the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owed {
    pub(super) group: HugeGroup,
    /// The file system that counts the page itself, not a reservation (0: none).
    fs: u8,
    /// The file system whose reservation the page has used, which has ended: it may keep the page (0: none).
    offered: u8,
}

impl Owed {
    const fn to_note(self) -> u64 {
        self.group.number() as u64 | (self.fs as u64) << 16 | (self.offered as u64) << 24
    }

    const fn from_note(note: u64) -> Self {
        let group = HugeGroup::from_number(note as u16);
        Self { group, fs: (note >> 16) as u8, offered: (note >> 24) as u8 }
    }

    /// What is noted with a page in use. A page of a pool that is free has no charges.
    pub(super) fn of<P: Platform>(pages: &PageAllocator<'_, P>, frame: Frame) -> Self {
        Self::from_note(pages.frames().huge_note(frame).load(Ordering::Relaxed))
    }
}

impl HugePools<'_> {
    /// Charges and reserves pages. A task that is bound to some nodes reserves no more than are free there, as
    /// far as that can be known now; surplus pages are allocated there, too.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: a limit is reached, or the pool has too few. Nothing has changed then.
    pub(crate) fn charge_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        count: u64,
    ) -> Result<(), AllocError> {
        let charged = self.charge(account.group, size, Charge::Reservation, count);
        charged.map_err(|_| AllocError::OutOfMemory)?;
        let nodes = pages.platform().task_nodes();
        let reserved = self.use_fs(pages.platform(), account.fs, count).and_then(|needed| {
            let reserved = self.reserve_from(pages, size, nodes, needed).and_then(|()| match nodes {
                NodePolicy::Bind(nodes) if self.lock(pages, size).sum(nodes).free < needed => {
                    self.unreserve(pages, size, needed);
                    Err(AllocError::OutOfMemory)
                }
                _ => Ok(()),
            });
            reserved.inspect_err(|_| self.undo_use_fs(pages, size, account.fs, (count, needed)))
        });
        reserved.inspect_err(|_| self.uncharge(account.group, size, Charge::Reservation, count))
    }

    /// Ends `count` reservations, of which `unused` were not used. The file system may keep the pages of these at
    /// once, and those of the others when they are given back ([`Self::offer`]).
    pub(crate) fn uncharge_reservations<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        account: Account,
        (count, unused): (u64, u64),
    ) {
        self.uncharge(account.group, size, Charge::Reservation, count);
        let kept = self.leave_fs(pages.platform(), account.fs, size, (count, unused));
        self.unreserve(pages, size, unused - kept);
    }

    /// Offers a page in use, whose reservation has ended, to a file system (0: none) for its minimum.
    pub(crate) fn offer<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame, fs: u8) {
        let note = Owed { group: HugeGroup::NONE, fs: 0, offered: fs }.to_note();
        pages.frames().huge_note(frame).fetch_or(note, Ordering::Relaxed);
    }

    /// Offers both pages of a move if one is offered: from now on either may be the one that goes back. (A
    /// file system keeps no more than its minimum.)
    pub(crate) fn offer_alike<P: Platform>(&self, pages: &PageAllocator<'_, P>, [old, new]: [Frame; 2]) {
        for (from, to) in [(old, new), (new, old)] {
            self.offer(pages, to, Owed::of(pages, from).offered);
        }
    }

    /// Charges and takes a page for a process, reserved or not. It has marks of what is zero; before the
    /// caller stores to it, or others can, it forgets them.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: a limit would be passed, or there is no page.
    pub(crate) fn take_for<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        HugeRequest { account, reserved, nodes, turn }: HugeRequest,
    ) -> Result<Frame, AllocError> {
        let charged = self.charge(account.group, size, Charge::Usage, 1);
        charged.map_err(|_| AllocError::OutOfMemory)?;
        let fs = if reserved { 0 } else { account.fs };
        // A page that the pool keeps for the file system is reserved, too.
        let needed = if reserved { Ok(0) } else { self.use_fs(pages.platform(), fs, 1) };
        let taken = needed.and_then(|needed| {
            let taken = self.take_marked(pages, size, (nodes, turn), needed == 0);
            taken.inspect_err(|_| {
                if !reserved {
                    self.undo_use_fs(pages, size, fs, (1, needed));
                }
            })
        });
        let note = Owed { group: account.group, fs, offered: 0 }.to_note();
        taken
            .inspect(|&frame| pages.frames().huge_note(frame).store(note, Ordering::Relaxed))
            .inspect_err(|_| self.uncharge(account.group, size, Charge::Usage, 1))
    }

    /// Gives back a page that no leaf maps, and undoes its charges. `reserved`: its reservation holds again.
    ///
    /// # Safety
    /// As for [`Self::give`].
    pub(crate) unsafe fn give_from<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
        reserved: bool,
    ) {
        let Owed { group, fs, offered } = Owed::of(pages, frame);
        pages.frames().huge_note(frame).store(0, Ordering::Relaxed);
        self.uncharge(group, size, Charge::Usage, 1);
        let number = if fs > 0 { fs } else { offered };
        let offered = !reserved && self.has_minimum(pages.platform(), number, size);
        // SAFETY: invariant 1: by this function's contract.
        unsafe { self.give(pages, size, frame, reserved || offered) };
        // Only now: the pool has the page, so another task may count on it (invariant 10).
        let kept = self.leave_fs(pages.platform(), number, size, (u64::from(fs > 0), u64::from(offered)));
        if offered && kept == 0 {
            self.unreserve(pages, size, 1);
        }
    }

    /// Gives back a page that no leaf maps and that was not lent at last, as [`Self::take_returned`] does.
    ///
    /// # Safety
    /// As for [`Self::give`].
    pub(crate) unsafe fn give_unmapped<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
    ) {
        let renewed = pages.frames().take_renewed(frame);
        // SAFETY: invariant 1: by this function's contract.
        unsafe { self.give_from(pages, size, frame, renewed) };
    }

    /// Charges for a page that stays beside the one that was to replace it, beyond all limits: leaves own both
    /// now. Both note the same charges. The caller still moves the page, so that no task gives it back; another task
    /// may have given the other one back already.
    pub(crate) fn charge_replaced<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        old: Frame,
        new: &OtherPage,
    ) {
        let Owed { group, fs, .. } = Owed::of(pages, old);
        self.groups.around(group).for_each(|slot| slot.counter(size, Charge::Usage).force(1));
        self.force_fs(pages.platform(), fs);
        self.keep_replaced(pages, size, old, new);
    }

    /// Takes back the lent pages that no leaf maps any more. On return, all pages whose last leaf went before
    /// the call are in their pool, whichever task took them, so that their reservations count.
    pub(crate) fn take_returned<P: Platform>(&self, pages: &PageAllocator<'_, P>) {
        let _right = Claim::wait(&self.returning, pages.platform());
        if pages.counts().has_returned_huge() {
            pages.counts().returned_huge(|frame, order, reserved| {
                if let Some(size) = HugeSize::of_order(order) {
                    // SAFETY: invariant 1: the last leaf of a lent page is gone, and it is returned once.
                    unsafe { self.give_from(pages, size, frame, reserved) };
                }
            });
        }
    }
}
