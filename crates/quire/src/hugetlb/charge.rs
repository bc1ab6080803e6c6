//! Makes, removes, limits and charges groups of processes.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::account::Owed;
use super::file::Claim;
use super::group::{
    Charge, FREE, GroupCounters, GroupEvents, HugeGroup, HugeGroupError, LIVE, LimitReached, REMOVED,
};
use super::{HugePools, HugeSize};
use crate::limits::MAX_NODES;
use crate::page_alloc::{PageAllocator, TableFrames};
use crate::platform::Platform;

impl HugePools<'_> {
    /// Makes a group without limits of its own, part of `parent`. The caller holds no lock.
    ///
    /// # Errors
    /// [`HugeGroupError`].
    pub fn make_group<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        parent: HugeGroup,
    ) -> Result<HugeGroup, HugeGroupError> {
        let _right = Claim::wait(&self.making, pages.platform());
        let found = loop {
            self.groups.all().for_each(|(_, slot)| self.groups.settle(slot));
            let free = self.groups.all().find(|(_, slot)| slot.state.load(Ordering::Relaxed) == FREE);
            match free {
                Some(found) => break found,
                None => self.groups.grow(&mut TableFrames::new(pages))?,
            }
        };
        let (group, slot) = found;
        slot.begin(parent);
        if let Some(parent) = self.groups.slot(parent) {
            parent.children.fetch_add(1, Ordering::Relaxed);
        }
        slot.state.store(LIVE, Ordering::Release);
        Ok(group)
    }

    /// Removes a group without processes. Its charges stay, here and above, until the pages are given back. A group
    /// that was removed before is left alone: its place may be free, and must not be freed twice.
    pub fn remove_group(&self, group: HugeGroup) {
        if let Some(slot) = self.groups.slot(group) {
            let order = (Ordering::Release, Ordering::Relaxed);
            let _ = slot.state.compare_exchange(LIVE, REMOVED, order.0, order.1);
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
        for (at, slot) in self.groups.around(group).enumerate() {
            let events = &slot.events[size as usize];
            events.all.fetch_add(1, Ordering::Relaxed);
            events.own.fetch_add(u64::from(at == 0), Ordering::Relaxed);
        }
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
            return GroupCounters { current: 0, max: u64::MAX };
        };
        GroupCounters {
            current: counter.current.load(Ordering::Relaxed),
            max: counter.max.load(Ordering::Relaxed),
        }
    }

    /// How many charges of a group were refused.
    pub fn group_events(&self, group: HugeGroup, size: HugeSize) -> GroupEvents {
        let events = self.groups.slot(group).map(|slot| &slot.events[size as usize]);
        events.map_or(GroupEvents::default(), |events| GroupEvents {
            all: events.all.load(Ordering::Relaxed),
            own: events.own.load(Ordering::Relaxed),
        })
    }

    /// How many pages a group and those below it use on each node (`numa_stat`). Reads the record of every
    /// block of the machine; exact while none of the pages comes or goes.
    pub fn group_nodes<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        group: HugeGroup,
        size: HugeSize,
    ) -> [u64; MAX_NODES] {
        let mut nodes = [0; MAX_NODES];
        let Some(of) = self.groups.slot(group) else { return nodes };
        for (number, _) in pages.memmap().blocks() {
            let frame = number.first_frame();
            if pages.frames().is_huge(frame, size.order())
                && self.groups.around(Owed::of(pages, frame).group).any(|slot| core::ptr::eq(slot, of))
            {
                nodes[usize::from(pages.store().node_of_frame(frame))] += 1;
            }
        }
        nodes
    }
}
