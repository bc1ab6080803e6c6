//! A number whose uses `loom` watches.

use loom::cell::UnsafeCell;

/// Two unordered uses, one of them a change, end the model.
pub(crate) struct Watched(UnsafeCell<u64>);

// SAFETY: `loom` runs one thread of a model at a time; whether uses are ordered is what this type checks.
unsafe impl Sync for Watched {}
// SAFETY: `loom` runs one thread of a model at a time, so the value is moved between no two.
unsafe impl Send for Watched {}

impl Watched {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    pub(crate) fn get(&self) -> u64 {
        // SAFETY: `loom` ends the model if another thread changes the value meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    pub(crate) fn increment(&self) {
        // SAFETY: `loom` ends the model if another thread uses the value meanwhile.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}
