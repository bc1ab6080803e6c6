//! What handlers read of a context, and what they put back.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::context::{Context, Owed, Slot, State};
use super::event::{Ticket, UserfaultEvent, UserfaultFault};
use super::registration::Registration;
use crate::platform::Platform;

/// What there is to read.
pub(super) enum Next {
    Event(UserfaultEvent),
    /// Nothing; the word to wait on is this.
    Nothing(u32),
    Closed,
}

/// How much of each kind there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserfaultInfo {
    /// Faults that were not read yet.
    pub pending: usize,
    /// Faults that were read and not answered yet.
    pub taken: usize,
    /// Changes that were not read yet.
    pub changes: usize,
}

impl Context {
    /// Takes what is to be read next out: changes first, since faults may have come of them; while some are
    /// under way that cannot be read yet, nothing. `sleeps`: the caller waits if there is nothing.
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

    /// Wakes the threads that wait for something to read, if that is owed. The caller holds no lock.
    pub(super) fn rouse<P: Platform>(&self, platform: &P, owed: bool) {
        if owed {
            platform.wake(&self.arrivals);
        }
    }

    /// Sleeps until something arrives, as one of those that [`Self::next`] has counted. The caller holds no
    /// lock.
    pub(super) fn sleep<P: Platform>(&self, platform: &P, registration: Registration, seen: u32) {
        platform.wait(&self.arrivals, seen);
        // The next user of the context finds no thread asleep.
        if let Some(mut state) = self.lock_open(platform, registration) {
            state.sleepers -= 1;
        }
    }

    /// Puts faults back that were read and not answered: those of this ticket, or all. How many. The caller
    /// holds no lock.
    pub(super) fn requeue<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        only: Option<Ticket>,
    ) -> usize {
        let Some(mut state) = self.lock_open(platform, registration) else { return 0 };
        let mut count = 0;
        for slot in &mut state.faults {
            if let Slot::Taken(order, fault) = *slot
                && only.is_none_or(|only| only == fault.ticket)
            {
                *slot = Slot::Pending(order, fault);
                count += 1;
            }
        }
        let rouse = count > 0 && self.arrive(&state);
        drop(state);
        self.rouse(platform, rouse);
        count
    }

    /// What there is.
    pub(super) fn info<P: Platform>(&self, platform: &P, registration: Registration) -> UserfaultInfo {
        let Some(state) = self.lock_open(platform, registration) else { return UserfaultInfo::default() };
        let count = |of: fn(&Slot) -> bool| state.faults.iter().filter(|slot| of(slot)).count();
        UserfaultInfo {
            pending: count(|slot| matches!(slot, Slot::Pending(..))),
            taken: count(|slot| matches!(slot, Slot::Taken(..))),
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
        let pending = |slot: &Slot| match *slot {
            Slot::Pending(order, _) => Some(order),
            Slot::Free | Slot::Taken(..) => None,
        };
        let first =
            self.faults.iter_mut().filter(|slot| pending(slot).is_some()).min_by_key(|slot| pending(slot))?;
        let Slot::Pending(order, fault) = *first else { return None };
        *first = Slot::Taken(order, fault);
        Some(fault)
    }
}
