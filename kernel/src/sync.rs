//! Locks of the kernel.
//!
//! | lock | while it is held | for |
//! |---|---|---|
//! | [`Mutex`] | the task does not sleep or yield | data that only tasks use |
//! | [`IrqLock`] | and interrupts are off; no heap, no [`Mutex`] | data that interrupt handlers use too |
//! | [`SleepLock`](crate::task::sleep_lock::SleepLock) | the task may sleep | what a task holds across a verb of Quire |
//!
//! Builds with checks look at these rules. They exclude two circles of CPUs that wait for each other:
//!
//! - A holder that allocates may wait until other CPUs have flushed. So a CPU that waits for a lock serves
//!   flushes. Its interrupts may be off: a task is freed right after a switch to another one, which takes the
//!   lock of the table of tasks.
//! - A handler may have interrupted the holder of a [`Mutex`] or of a lock of Quire's, and wait for an
//!   [`IrqLock`]. So the holder of an [`IrqLock`] waits for neither of them.

use core::ops::{Deref, DerefMut};

use x86_64::instructions::interrupts;

use crate::cpu::{area, ipi};

/// A spin lock of tasks.
#[derive(Default)]
pub struct Mutex<T>(spin::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around the value.
    pub const fn new(value: T) -> Self {
        Self(spin::Mutex::new(value))
    }

    /// Takes the lock. The CPU counts it: its holder must not be switched away from, since others may spin here.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        area::add_spin_lock();
        debug_assert!(!area::this().has_irq_locks(), "a handler may wait for the holder of an `IrqLock`");
        MutexGuard(Some(wait_for(|| self.0.try_lock())))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock()?;
        area::add_spin_lock();
        Some(MutexGuard(Some(guard)))
    }

    /// Stores a value and returns the old one. What that frees, it frees without the lock: it may wait.
    #[must_use = "dropped where the lock is not held"]
    pub fn replace(&self, value: T) -> T {
        core::mem::replace(&mut *self.lock(), value)
    }

    /// The value, without a lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// Holds a [`Mutex`].
pub struct MutexGuard<'l, T>(Option<spin::MutexGuard<'l, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held until the drop")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held until the drop")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        area::remove_spin_lock();
    }
}

/// A spin lock that is taken with interrupts off.
#[derive(Default)]
pub struct IrqLock<T>(spin::Mutex<T>);

impl<T> IrqLock<T> {
    /// A lock around the value.
    pub const fn new(value: T) -> Self {
        Self(spin::Mutex::new(value))
    }

    /// Takes the lock.
    pub fn lock(&self) -> IrqGuard<'_, T> {
        let enabled = interrupts::are_enabled();
        interrupts::disable();
        area::this().add_irq_lock();
        IrqGuard { guard: Some(wait_for(|| self.0.try_lock())), enabled }
    }
}

/// Tries until there is a guard. The holder may wait for this CPU to flush.
#[inline]
fn wait_for<G>(mut attempt: impl FnMut() -> Option<G>) -> G {
    loop {
        if let Some(guard) = attempt() {
            return guard;
        }
        wait_a_turn();
    }
}

#[cold]
#[inline(never)]
fn wait_a_turn() {
    ipi::serve_flushes();
    core::hint::spin_loop();
}

/// Holds an [`IrqLock`].
pub struct IrqGuard<'l, T> {
    guard: Option<spin::MutexGuard<'l, T>>,
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
        area::this().remove_irq_lock();
        if self.enabled {
            interrupts::enable();
        }
    }
}
