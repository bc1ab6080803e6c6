//! Finds places for calls whose order was not recorded, such that all recorded results are possible.
//!
//! An unordered call is recorded at its entry and took effect at some moment up to its exit. The events
//! around it show which: they met a mapped page, or a free address. So events are kept back while calls have
//! several possible places, together with every possible state of the address space. Each event drops the
//! states in which it could not have happened. If more than one state is left in the end, the addresses on
//! which they differ are in doubt.

mod doubts;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::{Call, Event, EventKind, Layouts, Syscall};
use doubts::Doubts;
use window::{Found, Window};

/// The most events that are kept back.
const MOST_KEPT: usize = 1 << 16;

/// An event in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The event.
    pub event: Event,
    /// The mappings at its addresses depend on an unknown order: applied in this order, the event may have
    /// another result than the recorded one.
    pub in_doubt: bool,
    space: u32,
}

/// Returns the events of a trace in an order in which they may have happened.
#[derive(Default)]
pub struct Settled {
    /// The layouts after the last pushed event, except for address spaces with a window.
    layouts: Layouts,
    /// The address spaces in which calls have no place yet.
    windows: HashMap<u32, Window>,
    /// Address spaces whose layout is a guess.
    unsure: HashSet<u32>,
    /// Events that wait for windows to close. The first has this number.
    kept: VecDeque<Kept>,
    first: u64,
    /// Calls that have found their place, before the event of this number.
    placed: BTreeMap<u64, Vec<Kept>>,
    doubts: Doubts,
    ready: VecDeque<Placed>,
    last_ns: u64,
}

struct Kept {
    event: Event,
    space: u32,
    /// The address space that starts as a copy of this one.
    copy: Option<u32>,
}

impl Settled {
    /// Takes the next event of a trace.
    pub fn push(&mut self, event: Event) {
        let space = self.layouts.number(event.pid);
        if matches!(event.kind, EventKind::Syscall(Syscall { unordered: true, .. })) {
            self.open(space, event);
        } else if self.windows.get_mut(&space).is_none_or(|window| !window.take_populated(&event)) {
            let copy = self.advance(space, &event);
            self.kept.push_back(Kept { event, space, copy });
        }
        if self.kept.len() > MOST_KEPT {
            self.close_all(true);
        }
        self.flush();
    }

    /// Ends the trace.
    pub fn finish(&mut self) {
        self.close_all(false);
        self.flush();
    }

    /// The next event whose place is known.
    pub fn pop(&mut self) -> Option<Placed> {
        self.ready.pop_front()
    }

    /// An event in doubt did not have its recorded effect: its addresses are in doubt from here on.
    pub fn went_otherwise(&mut self, placed: &Placed) {
        self.doubts.add(placed.space, &placed.event.kind);
    }

    /// The number of the next event that is kept.
    fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    fn open(&mut self, space: u32, event: Event) {
        let next = self.next();
        if let Some(window) = self.windows.get_mut(&space).filter(|window| !window.has_room()) {
            let (found, is_full) = (window.place(next), !window.has_room());
            self.note(space, found);
            if is_full {
                self.collapse(space, true);
            }
        }
        let (layout, is_sure) = (self.layouts.space(event.pid), !self.unsure.contains(&space));
        let others = self.windows.len();
        let new = || Window::new(layout.clone(), next, is_sure, others);
        let window = self.windows.entry(space).or_insert_with(new);
        window.open(event, next);
    }

    /// Applies an event to the layout of an address space. Returns the address space that the event makes of
    /// it.
    fn advance(&mut self, space: u32, event: &Event) -> Option<u32> {
        let next = self.next();
        let Some(window) = self.windows.get_mut(&space) else { return self.apply(event) };
        window.advance(event, next);
        match event.kind {
            // An event that copies or ends an address space must know its state.
            EventKind::Exec { .. } | EventKind::Fork { .. } | EventKind::ProcessExit { .. } => {
                self.collapse(space, true);
                let copy = self.apply(event);
                if self.unsure.contains(&space) {
                    self.unsure.extend(copy);
                }
                copy
            }
            _ => {
                if window.is_settled(next) {
                    self.collapse(space, false);
                } else {
                    let found = window.found(next + 1);
                    self.note(space, found);
                }
                None
            }
        }
    }

    fn apply(&mut self, event: &Event) -> Option<u32> {
        self.layouts.apply(event);
        match event.kind {
            EventKind::Fork { child_pid, .. } => Some(self.layouts.number(child_pid)),
            _ => None,
        }
    }

    /// Takes one of the possible states of an address space as the true one. With `early`, unplaced calls may
    /// have taken effect later.
    fn collapse(&mut self, space: u32, early: bool) {
        let next = self.next();
        let Some(window) = self.windows.remove(&space) else { return };
        let (layout, is_sure, found) = window.close(next, early);
        self.note(space, found);
        if !is_sure {
            self.unsure.insert(space);
        }
        self.layouts.replace(space, layout);
    }

    fn note(&mut self, space: u32, Found { places, doubts }: Found) {
        for (place, events) in places {
            let kept = events.into_iter().map(|event| Kept { event, space, copy: None });
            self.placed.entry(place).or_default().extend(kept);
        }
        let (from, doubts) = doubts;
        self.doubts.later(from, space, doubts);
    }

    fn close_all(&mut self, early: bool) {
        let spaces: Vec<u32> = self.windows.keys().copied().collect();
        spaces.into_iter().for_each(|space| self.collapse(space, early));
    }

    /// Releases the events before every open window.
    fn flush(&mut self) {
        let end = self.windows.values().map(Window::start).min().unwrap_or(self.next());
        while self.first <= end {
            self.doubts.reach(self.first);
            for kept in self.placed.remove(&self.first).into_iter().flatten() {
                self.give(kept);
            }
            if self.first == end {
                break;
            }
            self.first += 1;
            let kept = self.kept.pop_front();
            kept.into_iter().for_each(|kept| self.give(kept));
        }
    }

    fn give(&mut self, kept: Kept) {
        let Kept { mut event, space, copy } = kept;
        self.last_ns = self.last_ns.max(event.time_ns);
        event.time_ns = self.last_ns;
        let in_doubt = self.doubts.concern(space, &event.kind);
        self.doubts.apply(space, &event.kind, copy);
        if in_doubt && matches!(event.kind, EventKind::Syscall(Syscall { call: Call::Mremap, .. })) {
            // It moves addresses that are in doubt.
            self.doubts.add(space, &event.kind);
        }
        self.ready.push_back(Placed { event, in_doubt, space });
    }
}

#[cfg(test)]
mod tests;
