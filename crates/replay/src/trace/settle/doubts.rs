//! The addresses whose mappings are unknown until a call is placed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::trace::layout::reach;
use crate::trace::{Call, EventKind};

/// Addresses in doubt, by address space.
#[derive(Default)]
pub(super) struct Doubts {
    spaces: HashMap<u32, Vec<Range<u64>>>,
    /// Addresses that become doubtful at the event of this number.
    later: BTreeMap<u64, Vec<(u32, Range<u64>)>>,
}

impl Doubts {
    /// Marks the addresses of an event as in doubt from here on.
    pub(super) fn add(&mut self, space: u32, event: &EventKind) {
        self.spaces.entry(space).or_default().extend(reach(event));
    }

    /// Marks these addresses as in doubt from the event of this number on.
    pub(super) fn later(&mut self, from: u64, space: u32, doubts: Vec<Range<u64>>) {
        if !doubts.is_empty() {
            self.later.entry(from).or_default().extend(doubts.into_iter().map(|range| (space, range)));
        }
    }

    /// Advances to the event of this number.
    pub(super) fn reach(&mut self, event: u64) {
        for (space, range) in self.later.remove(&event).into_iter().flatten() {
            self.spaces.entry(space).or_default().push(range);
        }
    }

    /// Whether an event depends on addresses in doubt.
    pub(super) fn concern(&self, space: u32, event: &EventKind) -> bool {
        let Some(doubts) = self.spaces.get(&space) else { return false };
        reach(event).iter().any(|range| doubts.iter().any(|doubt| overlap(doubt, range)))
    }

    /// Applies an event: it settles its addresses, passes the doubts on to a copy, or ends them.
    pub(super) fn apply(&mut self, space: u32, event: &EventKind, copy: Option<u32>) {
        if !self.spaces.contains_key(&space) {
            return;
        }
        if let Some(copy) = copy.filter(|copy| *copy != space) {
            self.spaces.insert(copy, self.spaces[&space].clone());
        }
        let sure = match event {
            EventKind::Map { .. } => reach(event),
            EventKind::Syscall(call)
                if matches!(call.call, Call::Mmap | Call::Munmap) && call.ok() && !call.unordered =>
            {
                reach(event)
            }
            _ => return,
        };
        let Some(doubts) = self.spaces.get_mut(&space) else { return };
        for sure in sure {
            let parts = |doubt: &Range<u64>| {
                [doubt.start..doubt.end.min(sure.start), doubt.start.max(sure.end)..doubt.end]
            };
            *doubts = doubts.iter().flat_map(parts).filter(|part| !part.is_empty()).collect();
        }
        if doubts.is_empty() {
            self.spaces.remove(&space);
        }
    }
}

/// Whether two ranges overlap.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
