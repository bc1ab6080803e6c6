//! Makes, removes, limits and charges groups of processes.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::group::{
    Charge, Counter, FREE, GroupCounters, HugeGroup, LIVE, LimitReached, REMOVED, TooManyGroups,
};
use super::{HugePools, HugeSize};

impl HugePools<'_> {
    /// Makes a group without limits of its own, part of `parent`.
    ///
    /// # Errors
    /// [`TooManyGroups`].
    pub fn make_group(&self, parent: HugeGroup) -> Result<HugeGroup, TooManyGroups> {
        for (number, slot) in (1..).zip(self.groups.0.iter()) {
            let state = slot.state.load(Ordering::Acquire);
            let usable = state == FREE || state == REMOVED && self.groups.is_over(number, slot);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if usable && slot.state.compare_exchange(state, LIVE, order.0, order.1).is_ok() {
                slot.counters.iter().flatten().for_each(Counter::reset);
                slot.parent.store(parent.number(), Ordering::Relaxed);
                return Ok(HugeGroup::from_number(number));
            }
        }
        Err(TooManyGroups)
    }

    /// Removes a group without processes. Its charges stay, here and above, until the pages are given back.
    pub fn remove_group(&self, group: HugeGroup) {
        if let Some(slot) = self.groups.slot(group) {
            slot.state.store(REMOVED, Ordering::Release);
        }
    }

    /// Charges pages to a group and all that it is part of.
    ///
    /// # Errors
    /// [`LimitReached`]; nothing was charged then.
    pub fn charge(
        &self,
        group: HugeGroup,
        size: HugeSize,
        kind: Charge,
        pages: u64,
    ) -> Result<(), LimitReached> {
        let counters = || self.groups.around(group).map(|slot| slot.counter(size, kind));
        let charged = counters().take_while(|counter| counter.add(pages)).count();
        if charged == counters().count() {
            return Ok(());
        }
        counters().take(charged).for_each(|counter| counter.sub(pages));
        Err(LimitReached)
    }

    /// Undoes a charge.
    pub fn uncharge(&self, group: HugeGroup, size: HugeSize, kind: Charge, pages: u64) {
        self.groups.around(group).for_each(|slot| slot.counter(size, kind).sub(pages));
    }

    /// Limits later charges of a group.
    pub fn set_group_max(&self, group: HugeGroup, size: HugeSize, kind: Charge, max: u64) {
        if let Some(slot) = self.groups.slot(group) {
            slot.counter(size, kind).max.store(max, Ordering::Relaxed);
        }
    }

    /// A group's numbers.
    pub fn group_counters(&self, group: HugeGroup, size: HugeSize, kind: Charge) -> GroupCounters {
        let Some(counter) = self.groups.slot(group).map(|slot| slot.counter(size, kind)) else {
            return GroupCounters { current: 0, max: u64::MAX, failures: 0 };
        };
        GroupCounters {
            current: counter.current.load(Ordering::Relaxed),
            max: counter.max.load(Ordering::Relaxed),
            failures: counter.failures.load(Ordering::Relaxed),
        }
    }
}
