//! Which thread holds the lock of which address space.

use std::collections::HashMap;

use crate::record::queue::Key;

/// The part of a call in which it held its address space's lock for writing.
pub(super) struct Section {
    /// The kernel's number of the address space.
    pub(super) mm: u64,
    /// A moment at its end; `None` until a record shows that the thread released or downgraded the lock. If
    /// that record is lost, the section ends at the latest when another thread takes the lock or the call
    /// returns.
    pub(super) end: Option<Key>,
}

/// The threads that hold locks inside calls.
#[derive(Default)]
pub(super) struct Locks {
    holders: HashMap<u64, u32>,
}

impl Locks {
    pub(super) fn holder(&self, mm: u64) -> Option<u32> {
        self.holders.get(&mm).copied()
    }

    pub(super) fn taken(&mut self, mm: u64, tid: u32) {
        self.holders.insert(mm, tid);
    }

    pub(super) fn released(&mut self, mm: u64) {
        self.holders.remove(&mm);
    }

    /// Records that the thread has left the call of this section.
    pub(super) fn left(&mut self, section: &Section, tid: u32) {
        if self.holder(section.mm) == Some(tid) {
            self.released(section.mm);
        }
    }
}
