//! Locks of the kernel.
//!
//! | lock | while it is held | for |
//! |---|---|---|
//! | [`Mutex`] | the task does not sleep or yield, which builds with checks look at | data that only tasks use |
//! | [`IrqLock`] | and interrupts are off | data that interrupt handlers use too |
//! | [`SleepLock`](crate::task::sleep_lock::SleepLock) | the task may sleep | what a task holds across a verb of Quire |

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
        MutexGuard(Some(self.0.lock()))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock()?;
        area::add_spin_lock();
        Some(MutexGuard(Some(guard)))
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
        if self.enabled {
            interrupts::enable();
        }
    }
}
