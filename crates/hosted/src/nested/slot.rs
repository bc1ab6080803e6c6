//! Virtual CPUs inside an access: a number for each, odd while it is inside.
//!
//! A virtual CPU enters by one sequentially consistent read-modify-write, and loads entries after it. A
//! thread that changed entries executes a sequentially consistent fence after the change, and then loads the
//! number. So one of the two sees the other: the access walks the new entries, or the thread waits for it. No
//! wait is longer than the current access.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Turns of a wait between two offers of the processor to other threads.
const TURNS_PER_YIELD: u32 = 64;

#[repr(align(128))]
#[derive(Default)]
pub(super) struct Slot {
    inside: AtomicU64,
    taken: AtomicBool,
}

/// An access under way, until dropped.
pub(super) struct Inside<'a>(&'a Slot);

impl Slot {
    /// Takes the slot; false if it was taken.
    pub(super) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    pub(super) fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The owner of the slot enters an access.
    pub(super) fn enter(&self) -> Inside<'_> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let inside = self.0.inside.load(Ordering::Relaxed);
        self.0.inside.store(inside + 1, Ordering::Release);
    }
}

/// Waits until every access that may have walked before the call has ended.
pub(super) fn wait_for_all(slots: &[Slot]) {
    fence(Ordering::SeqCst);
    for slot in slots {
        let seen = slot.inside.load(Ordering::SeqCst);
        let mut turns = 0u32;
        while seen % 2 == 1 && slot.inside.load(Ordering::Acquire) == seen {
            turns += 1;
            if turns.is_multiple_of(TURNS_PER_YIELD) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests;
