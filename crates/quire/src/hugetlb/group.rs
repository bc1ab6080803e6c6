//! Limits for groups of processes (Linux: the `hugetlb` controller of control groups).
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use super::HugeSize;

/// What is counted of one size, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charge {
    /// Pages that the group's processes use (`current`).
    Usage,
    /// Pages that they were promised or use (`rsvd.current`).
    Reservation,
}

/// A group's numbers for one size and kind of charge, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupCounters {
    /// Charged now, to the group and those below it.
    pub current: u64,
    /// What may be.
    pub max: u64,
    /// Charges that were refused at this group's limit (`events`: `max`).
    pub failures: u64,
}

struct Counter {
    current: AtomicU64,
    max: AtomicU64,
    failures: AtomicU64,
}

/// A group of processes, with a group that it is part of, or none. A charge counts in all of them, or in none.
pub struct HugeGroup<'g> {
    parent: Option<&'g HugeGroup<'g>>,
    counters: [[Counter; 2]; 2],
}

/// A charge would pass the limit of the group or of one that it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReached;

impl<'g> HugeGroup<'g> {
    /// A group without limits of its own.
    pub const fn new(parent: Option<&'g HugeGroup<'g>>) -> Self {
        Self { parent, counters: [const { [const { Counter::new() }; 2] }; 2] }
    }

    /// Charges pages.
    ///
    /// # Errors
    /// [`LimitReached`]; nothing was charged then.
    pub fn charge(&self, size: HugeSize, kind: Charge, pages: u64) -> Result<(), LimitReached> {
        let charged = self.groups().take_while(|group| group.counter(size, kind).add(pages)).count();
        if charged == self.groups().count() {
            return Ok(());
        }
        self.groups().take(charged).for_each(|group| group.counter(size, kind).sub(pages));
        Err(LimitReached)
    }

    /// Takes a charge back.
    pub fn uncharge(&self, size: HugeSize, kind: Charge, pages: u64) {
        self.groups().for_each(|group| group.counter(size, kind).sub(pages));
    }

    /// Limits the group from now on; what is charged already stays.
    pub fn set_max(&self, size: HugeSize, kind: Charge, max: u64) {
        self.counter(size, kind).max.store(max, Ordering::Relaxed);
    }

    /// The group's numbers.
    pub fn counters(&self, size: HugeSize, kind: Charge) -> GroupCounters {
        let counter = self.counter(size, kind);
        GroupCounters {
            current: counter.current.load(Ordering::Relaxed),
            max: counter.max.load(Ordering::Relaxed),
            failures: counter.failures.load(Ordering::Relaxed),
        }
    }

    /// The group and those that it is part of, outwards.
    fn groups(&self) -> impl Iterator<Item = &HugeGroup<'g>> {
        core::iter::successors(Some(self), |group| group.parent)
    }

    fn counter(&self, size: HugeSize, kind: Charge) -> &Counter {
        &self.counters[size as usize][kind as usize]
    }
}

impl Counter {
    const fn new() -> Self {
        Self { current: AtomicU64::new(0), max: AtomicU64::new(u64::MAX), failures: AtomicU64::new(0) }
    }

    /// Adds pages within the limit; whether it did.
    fn add(&self, pages: u64) -> bool {
        let within =
            |current: u64| current.checked_add(pages).filter(|&sum| sum <= self.max.load(Ordering::Relaxed));
        let added = self.current.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok();
        if !added {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        added
    }

    fn sub(&self, pages: u64) {
        let before = self.current.fetch_sub(pages, Ordering::Relaxed);
        debug_assert!(before >= pages, "more is taken back than was charged");
    }
}
