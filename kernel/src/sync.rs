//! Locks of the kernel.
//!
//! | lock | while it is held | for |
//! |---|---|---|
//! | `spin::Mutex` | the task does not sleep or yield | data that only tasks use |
//! | [`IrqLock`] | and interrupts are off | data that interrupt handlers use too |
//! | [`SleepLock`](crate::task::sleep_lock::SleepLock) | the task may sleep | what a task holds across a verb of Quire |

use core::ops::{Deref, DerefMut};

use spin::{Mutex, MutexGuard};
use x86_64::instructions::interrupts;

use crate::cpu::ipi;

/// A spin lock that is taken with interrupts off.
#[derive(Default)]
pub struct IrqLock<T>(Mutex<T>);

impl<T> IrqLock<T> {
    /// A lock around the value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes the lock. Its holder may wait for this CPU to flush, if it allocates memory, so flushes are served.
    pub fn lock(&self) -> IrqGuard<'_, T> {
        let enabled = interrupts::are_enabled();
        interrupts::disable();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return IrqGuard { guard: Some(guard), enabled };
            }
            ipi::serve_flushes();
            core::hint::spin_loop();
        }
    }
}

/// Holds an [`IrqLock`].
pub struct IrqGuard<'l, T> {
    guard: Option<MutexGuard<'l, T>>,
    enabled: bool,
}

impl<T> Deref for IrqGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until the drop")
    }
}

impl<T> DerefMut for IrqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until the drop")
    }
}

impl<T> Drop for IrqGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        if self.enabled {
            interrupts::enable();
        }
    }
}
