//! Who is inside an access: a number for each virtual CPU, odd while it is.
//!
//! Entering is one sequentially consistent read-modify-write, after which entries are loaded; whoever changed entries has a
//! sequentially consistent fence behind the change and loads the number then. So one of the two sees the other: an access
//! walks what is new, or is waited for. Nobody waits longer than for the access that is under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Turns of a wait between two offers of the processor to somebody else.
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
    /// Makes the slot the caller's; whether it was nobody's.
    pub(super) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    pub(super) fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Whoever has taken the slot enters.
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

/// Waits until nobody is inside an access any more who may have walked before the call.
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
