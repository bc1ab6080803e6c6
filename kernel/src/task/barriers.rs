//! The barriers that a process may ask for (`membarrier(2)`).

use core::sync::atomic::{AtomicU32, Ordering};

/// What a process has registered for: the commands' own bits.
#[derive(Default)]
pub struct Registrations(AtomicU32);

impl Registrations {
    /// Adds a command that registers.
    pub fn add(&self, command: u32) {
        self.0.fetch_or(command, Ordering::Relaxed);
    }

    /// Whether such a command was added.
    pub fn has(&self, command: u32) -> bool {
        self.0.load(Ordering::Relaxed) & command != 0
    }

    /// All that were added.
    pub fn all(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// What a child begins with.
    pub fn inherited(&self) -> Self {
        Self(AtomicU32::new(self.all()))
    }

    /// Forgets all, for another program.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
