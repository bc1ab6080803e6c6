//! Limits for groups of processes (Linux: the `hugetlb` controller of control groups).
//!
//! A group is part of another one, or of none. A charge counts in the group and in all that it is part of, or
//! is refused. Each page and reservation notes the number of its group. So a group that is removed stays
//! until the last of them is given back; its parents count them until then.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::HugeSize;
use crate::error::InitError;
use crate::limits::MAX_HUGE_GROUPS;
use crate::memmap::BootTable;
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
    /// Charges that were refused at this group's limit (`events`: `max`).
    pub failures: u64,
}

/// A group of processes. [`HugeGroup::NONE`] counts no charges and has no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HugeGroup(u8);

/// A charge would pass the limit of the group or of one that it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReached;

/// There are [`MAX_HUGE_GROUPS`] already, removed ones included while some of their pages are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyGroups;

impl HugeGroup {
    /// No group.
    pub const NONE: Self = Self(0);

    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_number(number: u8) -> Self {
        Self(number)
    }
}

#[derive(Debug)]
pub(super) struct Counter {
    pub(super) current: AtomicU64,
    pub(super) max: AtomicU64,
    pub(super) failures: AtomicU64,
}

pub(super) const FREE: u8 = 0;
pub(super) const LIVE: u8 = 1;
pub(super) const REMOVED: u8 = 2;

pub(super) struct Slot {
    pub(super) state: AtomicU8,
    pub(super) parent: AtomicU8,
    pub(super) counters: [[Counter; 2]; 2],
}

pub(super) struct Groups(pub(super) BootTable<Slot>);

impl Groups {
    pub(super) fn new<P: FramePlatform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        tables.table(MAX_HUGE_GROUPS, |_, _| Ok(Slot::new())).map(Self)
    }

    pub(super) fn slot(&self, group: HugeGroup) -> Option<&Slot> {
        self.0.get(usize::from(group.0).checked_sub(1)?)
    }

    /// The group and all that it is part of, outwards.
    pub(super) fn around(&self, group: HugeGroup) -> impl Iterator<Item = &Slot> {
        let parent = |slot: &&Slot| self.slot(HugeGroup(slot.parent.load(Ordering::Relaxed)));
        core::iter::successors(self.slot(group), parent)
    }

    /// Whether a removed group has no charges and no children left.
    pub(super) fn is_over(&self, number: u8, slot: &Slot) -> bool {
        let charged =
            slot.counters.iter().flatten().any(|counter| counter.current.load(Ordering::Relaxed) > 0);
        let child = |slot: &Slot| {
            slot.state.load(Ordering::Relaxed) != FREE && slot.parent.load(Ordering::Relaxed) == number
        };
        !charged && !self.0.iter().any(child)
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(FREE),
            parent: AtomicU8::new(0),
            counters: [const { [const { Counter::new() }; 2] }; 2],
        }
    }

    pub(super) fn counter(&self, size: HugeSize, kind: Charge) -> &Counter {
        &self.counters[size as usize][kind as usize]
    }
}

impl Counter {
    const fn new() -> Self {
        Self { current: AtomicU64::new(0), max: AtomicU64::new(u64::MAX), failures: AtomicU64::new(0) }
    }

    pub(super) fn reset(&self) {
        self.max.store(u64::MAX, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Adds pages, unless that would pass the limit; returns whether it did.
    pub(super) fn add(&self, pages: u64) -> bool {
        let within =
            |current: u64| current.checked_add(pages).filter(|&sum| sum <= self.max.load(Ordering::Relaxed));
        let added = self.current.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok();
        if !added {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    pub(super) fn sub(&self, pages: u64) {
        let before = self.current.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "more is taken back than was charged");
    }
}
