//! Handler threads read events of a context, and put faults back.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::context::{Context, FaultState, Owed, State};
use super::event::{Ticket, UserfaultEvent, UserfaultFault};
use super::registration::Registration;
use crate::platform::Platform;

pub(super) enum Next {
    Event(UserfaultEvent),
    /// Nothing to read while `arrivals` is this.
    Nothing(u32),
    Closed,
}

/// How many events a handler has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserfaultInfo {
    /// Faults not read yet.
    pub pending: usize,
    /// Faults read and not answered yet.
    pub taken: usize,
    /// Changes not read yet.
    pub changes: usize,
}

impl Context {
    /// Takes the next event out: changes first, since they may have caused faults; nothing while a change is
    /// announced. `sleeps`: the caller waits if there is nothing.
    pub(super) fn next<P: Platform>(&self, platform: &P, registration: Registration, sleeps: bool) -> Next {
        let Some(mut state) = self.lock_open(platform, registration) else { return Next::Closed };
        let mut owed = Owed::default();
        let found = match state.first_change() {
            Some(slot) => {
                let change = state.changes[slot].take();
                self.changed(&self.changes[slot]);
                owed.changes |= 1 << slot;
                self.admit_waiting(&mut state, &mut owed);
                if change.is_some_and(|change| change.announced) {
                    self.changing.fetch_sub(1, Ordering::Relaxed);
                }
                change.map(|change| change.event)
            }
            None if state.announced > 0 => None,
            None => state.take_fault().map(UserfaultEvent::Fault),
        };
        let seen = self.arrivals.load(Ordering::Relaxed);
        state.sleepers += u32::from(sleeps && found.is_none());
        drop(state);
        self.settle(platform, &owed);
        found.map_or(Next::Nothing(seen), Next::Event)
    }

    /// Wakes handler threads, if that is owed. The caller holds no lock.
    pub(super) fn rouse<P: Platform>(&self, platform: &P, owed: bool) {
        if owed {
            platform.wake(&self.arrivals);
        }
    }

    /// Counts a thread that always waits: each arrival wakes.
    pub(super) fn watch<P: Platform>(&self, platform: &P, registration: Registration) {
        if let Some(mut state) = self.lock_open(platform, registration) {
            state.sleepers += 1;
        }
    }

    /// Sleeps until something arrives, as a thread that [`Self::next`] has counted. The caller holds no lock.
    pub(super) fn sleep<P: Platform>(&self, platform: &P, registration: Registration, seen: u32) {
        platform.wait(&self.arrivals, seen);
        // A close has reset the count for the next handler.
        if let Some(mut state) = self.lock_open(platform, registration) {
            state.sleepers -= 1;
        }
    }

    /// Puts back the faults that were read and not answered: the one with this ticket, or all. Returns how
    /// many. The caller holds no lock.
    pub(super) fn requeue<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        only: Option<Ticket>,
    ) -> usize {
        let Some(mut state) = self.lock_open(platform, registration) else { return 0 };
        let mut count = 0;
        for slot in state.faults.iter_mut() {
            if let FaultState::Taken(order, fault) = *slot
                && only.is_none_or(|only| only == fault.ticket)
            {
                *slot = FaultState::Pending(order, fault);
                count += 1;
            }
        }
        let rouse = count > 0 && self.arrive(&state);
        drop(state);
        self.rouse(platform, rouse);
        count
    }

    pub(super) fn info<P: Platform>(&self, platform: &P, registration: Registration) -> UserfaultInfo {
        let Some(state) = self.lock_open(platform, registration) else { return UserfaultInfo::default() };
        let count = |of: fn(&FaultState) -> bool| state.faults.iter().filter(|slot| of(slot)).count();
        UserfaultInfo {
            pending: count(|slot| matches!(slot, FaultState::Pending(..))),
            taken: count(|slot| matches!(slot, FaultState::Taken(..))),
            changes: state.changes.iter().flatten().count(),
        }
    }
}

impl State {
    fn first_change(&self) -> Option<usize> {
        let orders = self.changes.iter().enumerate();
        orders.filter_map(|(slot, change)| Some((change.as_ref()?.order, slot))).min().map(|(_, slot)| slot)
    }

    fn take_fault(&mut self) -> Option<UserfaultFault> {
        let pending = self.faults.iter_mut().filter_map(|slot| match *slot {
            FaultState::Pending(order, fault) => Some((order, fault, slot)),
            FaultState::Free | FaultState::Taken(..) => None,
        });
        let (order, fault, slot) = pending.min_by_key(|&(order, ..)| order)?;
        *slot = FaultState::Taken(order, fault);
        Some(fault)
    }
}
