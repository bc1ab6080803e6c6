//! Orders events.
//!
//! Most events are complete when they arrive, but some are not. A call that releases memory is placed at its
//! entry and gets its result at its exit; a fault's duration is known when it is resolved. Such an event
//! holds up all later ones until it is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::trace::EventKind;

/// Place of an event: time, then the order of the kernel's records, then a rank for events put before or
/// after it.
pub(super) type Key = (u64, u64, i32);

/// If this many events wait, the oldest incomplete one is written as it is: memory stays bounded even if a
/// thread sleeps for ever inside a call or a fault.
const MOST_WAITING: usize = 1 << 20;

/// An event that waits for its turn.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) kind: DraftKind,
}

#[derive(Debug)]
pub(super) enum DraftKind {
    Event(EventKind),
    /// Pages by file index; they become addresses when the mapping before them is known.
    Around {
        addr: u64,
        device: u64,
        inode: u64,
        first: u64,
        last: u64,
    },
}

/// Events in their order, some incomplete.
#[derive(Default)]
pub(super) struct Queue {
    drafts: BTreeMap<Key, Draft>,
    holds: BTreeSet<Key>,
    /// The last place that was written.
    passed: Option<Key>,
}

impl Queue {
    pub(super) fn put(&mut self, key: Key, draft: Draft) {
        let replaced = self.drafts.insert(key, draft);
        debug_assert!(replaced.is_none(), "two events at {key:?}");
    }

    /// Holds all events at or after this place until it is released.
    pub(super) fn hold(&mut self, key: Key) {
        self.holds.insert(key);
    }

    pub(super) fn release(&mut self, key: Key) {
        self.holds.remove(&key);
    }

    /// The event at a place, if it was not written yet.
    pub(super) fn kind_mut(&mut self, key: Key) -> Option<&mut EventKind> {
        match &mut self.drafts.get_mut(&key)?.kind {
            DraftKind::Event(kind) => Some(kind),
            DraftKind::Around { .. } => None,
        }
    }

    pub(super) fn between(&self, span: Range<Key>) -> impl Iterator<Item = (&Key, &Draft)> {
        self.drafts.range(span)
    }

    /// The next complete event up to the horizon.
    pub(super) fn pop(&mut self, horizon_ns: u64) -> Option<(Key, Draft)> {
        let (&first, _) = self.drafts.first_key_value()?;
        if first.0 > horizon_ns {
            return None;
        }
        while let Some(&hold) = self.holds.first()
            && hold <= first
        {
            if self.drafts.len() <= MOST_WAITING {
                return None;
            }
            self.holds.pop_first();
        }
        let popped = self.drafts.pop_first();
        self.passed = self.passed.max(popped.as_ref().map(|(key, _)| *key));
        popped
    }

    /// Whether later events were written already, because this one waited too long.
    pub(super) fn has_passed(&self, key: Key) -> bool {
        self.passed.is_some_and(|passed| key < passed)
    }

    /// No more records will arrive: incomplete events are written as they are.
    pub(super) fn release_all(&mut self) {
        self.holds.clear();
    }
}

#[cfg(test)]
mod tests;
