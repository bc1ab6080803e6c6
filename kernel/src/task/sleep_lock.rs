//! A lock that a task may hold while it sleeps.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::wait::WaitQueue;
use crate::sync::Mutex;

/// A lock whose waiters sleep.
pub struct SleepLock<T> {
    held: Mutex<bool>,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

// SAFETY: L1: one task at a time holds the lock and uses the value.
unsafe impl<T: Send> Sync for SleepLock<T> {}

impl<T: Default> Default for SleepLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> SleepLock<T> {
    /// A lock around the value.
    pub const fn new(value: T) -> Self {
        Self { held: Mutex::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. Signals do not end the wait.
    pub fn lock(&self) -> SleepGuard<'_, T> {
        self.waiters
            .wait_uninterruptible(|| (!core::mem::replace(&mut *self.held.lock(), true)).then_some(()));
        SleepGuard(self)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SleepGuard<'_, T>> {
        let is_held = core::mem::replace(&mut *self.held.lock(), true);
        (!is_held).then_some(SleepGuard(self))
    }
}

/// Holds a [`SleepLock`].
pub struct SleepGuard<'l, T>(&'l SleepLock<T>);

impl<T> Deref for SleepGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: L1: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SleepGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: L1: the guard holds the lock, and is borrowed alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SleepGuard<'_, T> {
    fn drop(&mut self) {
        *self.0.held.lock() = false;
        self.0.waiters.wake_one();
    }
}
