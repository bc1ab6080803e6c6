//! Limits for groups of processes (Linux: the `hugetlb` controller of control groups).
//!
//! A group is part of another one, or of none. A charge counts in the group and in all that it is part of, or
//! is refused. Each page and reservation notes the number of its group. So a group that is removed stays
//! until the last of them is given back; its parents count them until then.
//!
//! Groups stand in tables of frames, each twice as large as the one before it. The first is there from the
//! start; the others are made when all groups are taken, and stay.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use super::HugeSize;
use crate::error::InitError;
use crate::error::errno::{EAGAIN, ENOMEM};
use crate::limits::{HUGE_GROUP_TABLES, HUGE_GROUPS_AT_START};
use crate::memmap::{BootTable, DeferredTable};
use crate::page_alloc::TableFrames;
use crate::platform::FramePlatform;

/// What a group counts, in pages of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charge {
    /// Pages that the group's processes use (`current`).
    Usage,
    /// Pages reserved for them (`rsvd.current`), used or not.
    Reservation,
}

/// A group's numbers for one size and kind of charge, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupCounters {
    /// Charged now, to the group and those below it.
    pub current: u64,
    /// The limit.
    pub max: u64,
}

/// How many charges of one size, of both kinds, were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupEvents {
    /// Charges of processes of the group and of those below it (`events`: `max`).
    pub all: u64,
    /// Charges of the group's own processes (`events.local`: `max`).
    pub own: u64,
}

/// A group of processes. [`HugeGroup::NONE`] counts no charges and has no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HugeGroup(u16);

/// A charge would pass the limit of the group or of one that it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReached;

/// Why no group was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeGroupError {
    /// `EAGAIN`: there are [`MAX_HUGE_GROUPS`](crate::limits::MAX_HUGE_GROUPS) already, removed ones included
    /// while some of their pages are in use.
    TooMany,
    /// `ENOMEM`: there is no memory for more.
    NoMemory,
}

impl HugeGroupError {
    /// The errno of mkdir(2) that the variant's description names.
    pub const fn errno(self) -> i32 {
        match self {
            Self::TooMany => EAGAIN,
            Self::NoMemory => ENOMEM,
        }
    }
}

impl HugeGroup {
    /// No group.
    pub const NONE: Self = Self(0);

    pub(crate) const fn number(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_number(number: u16) -> Self {
        Self(number)
    }
}

pub(super) struct Counter {
    pub(super) current: AtomicU64,
    pub(super) max: AtomicU64,
}

pub(super) struct Events {
    pub(super) all: AtomicU64,
    pub(super) own: AtomicU64,
}

pub(super) const FREE: u8 = 0;
pub(super) const LIVE: u8 = 1;
pub(super) const REMOVED: u8 = 2;

pub(super) struct GroupRecord {
    pub(super) state: AtomicU8,
    pub(super) parent: AtomicU16,
    /// Groups, removed ones included, that are directly part of it.
    pub(super) children: AtomicU16,
    pub(super) counters: [[Counter; 2]; 2],
    pub(super) events: [Events; 2],
}

pub(super) struct Groups(BootTable<DeferredTable<GroupRecord>>);

impl Groups {
    pub(super) fn new<P: FramePlatform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        let late = |at: usize| DeferredTable::new(HUGE_GROUPS_AT_START << at);
        let groups = Self(tables.table(HUGE_GROUP_TABLES, |_, at| Ok(late(at)))?);
        groups.0[0].set(tables.table(HUGE_GROUPS_AT_START, |_, _| Ok(GroupRecord::new()))?);
        Ok(groups)
    }

    /// Makes the next table. No other task does so meanwhile.
    pub(super) fn grow<P: FramePlatform>(
        &self,
        tables: &mut TableFrames<'_, '_, P>,
    ) -> Result<(), HugeGroupError> {
        let late = self.0.iter().find(|table| table.is_empty()).ok_or(HugeGroupError::TooMany)?;
        let made = tables.table(late.capacity(), |_, _| Ok(GroupRecord::new()));
        late.set(made.map_err(|_| HugeGroupError::NoMemory)?);
        Ok(())
    }

    pub(super) fn slot(&self, group: HugeGroup) -> Option<&GroupRecord> {
        let place = usize::from(group.0).checked_sub(1)? + HUGE_GROUPS_AT_START;
        let table = (place / HUGE_GROUPS_AT_START).ilog2();
        self.0.get(table as usize)?.get(place - (HUGE_GROUPS_AT_START << table))
    }

    /// All groups for which there is memory.
    pub(super) fn all(&self) -> impl Iterator<Item = (HugeGroup, &GroupRecord)> {
        (1..).map(HugeGroup).zip(self.0.iter().flat_map(|table| table.iter()))
    }

    /// The group and all that it is part of, outwards.
    pub(super) fn around(&self, group: HugeGroup) -> impl Iterator<Item = &GroupRecord> {
        let parent = |slot: &&GroupRecord| self.slot(HugeGroup(slot.parent.load(Ordering::Relaxed)));
        core::iter::successors(self.slot(group), parent)
    }

    /// Frees a removed group that has no charges and no children left, and then its parent, if that was
    /// waiting for it.
    pub(super) fn settle(&self, slot: &GroupRecord) {
        let idle = slot.children.load(Ordering::Acquire) == 0 && !slot.is_charged();
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if idle && slot.state.compare_exchange(REMOVED, FREE, order.0, order.1).is_ok() {
            let parent = self.slot(HugeGroup(slot.parent.load(Ordering::Relaxed)));
            if let Some(parent) = parent {
                parent.children.fetch_sub(1, Ordering::AcqRel);
                self.settle(parent);
            }
        }
    }
}

impl GroupRecord {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(FREE),
            parent: AtomicU16::new(0),
            children: AtomicU16::new(0),
            counters: [const { [const { Counter::new() }; 2] }; 2],
            events: [const { Events { all: AtomicU64::new(0), own: AtomicU64::new(0) } }; 2],
        }
    }

    /// Makes it a group without limits, part of `parent`. The caller has just made it live.
    pub(super) fn begin(&self, parent: HugeGroup) {
        let maxima = self.counters.iter().flatten().map(|counter| (&counter.max, u64::MAX));
        let events = self.events.iter().flat_map(|events| [(&events.all, 0), (&events.own, 0)]);
        maxima.chain(events).for_each(|(cell, value)| cell.store(value, Ordering::Relaxed));
        self.parent.store(parent.number(), Ordering::Relaxed);
    }

    fn is_charged(&self) -> bool {
        self.counters.iter().flatten().any(|counter| counter.current.load(Ordering::Relaxed) > 0)
    }

    pub(super) fn counter(&self, size: HugeSize, kind: Charge) -> &Counter {
        &self.counters[size as usize][kind as usize]
    }
}

impl Counter {
    const fn new() -> Self {
        Self { current: AtomicU64::new(0), max: AtomicU64::new(u64::MAX) }
    }

    /// Adds pages, unless that would pass the limit; returns whether it did.
    pub(super) fn add(&self, pages: u64) -> bool {
        let within =
            |current: u64| current.checked_add(pages).filter(|&sum| sum <= self.max.load(Ordering::Relaxed));
        self.current.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Adds pages beyond the limit.
    pub(super) fn force(&self, pages: u64) {
        self.current.fetch_add(pages, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, pages: u64) {
        let before = self.current.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "more is taken back than was charged");
    }
}
