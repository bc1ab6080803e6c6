//! Test-and-test-and-set spin locks. Named limits bound hold times, so a queue would not pay; and a queue
//! lock stalls when a hosted machine has more threads than processors.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::Rank;
use crate::atomic::{AtomicBool, Ordering};
use crate::platform::FramePlatform;

/// A lock without data, for records of atomics laid out by hand. Zeroed memory is an unlocked lock.
#[derive(Default)]
#[repr(transparent)]
pub struct RawLock(AtomicBool);

impl RawLock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Makes any memory an unlocked lock. Nothing else names the lock yet.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock<P: FramePlatform>(&self, platform: &P, rank: Rank) {
        platform.lock_taken(rank);
        if self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait_and_lock(platform);
        }
    }

    /// Out of line, so that the common case is inlined.
    #[cold]
    #[inline(never)]
    fn wait_and_lock<P: FramePlatform>(&self, platform: &P) {
        loop {
            while self.0.load(Ordering::Relaxed) {
                platform.relax();
            }
            if self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Locks if the lock is free.
    #[inline]
    pub fn try_lock<P: FramePlatform>(&self, platform: &P, rank: Rank) -> bool {
        let taken = !self.0.load(Ordering::Relaxed)
            && self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            platform.lock_taken(rank);
        }
        taken
    }

    /// Unlocks. The caller holds the lock.
    #[inline]
    pub fn unlock<P: FramePlatform>(&self, platform: &P, rank: Rank) {
        debug_assert!(self.is_locked());
        self.0.store(false, Ordering::Release);
        platform.lock_dropped(rank);
    }

    /// Whether the lock is held; for assertions.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A spin lock around a value.
pub struct SpinLock<T> {
    rank: Rank,
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: L1: `value` is reached through a `SpinGuard`, of which `raw` allows one at a time, or through
// `&mut`. So sharing the lock hands the value from thread to thread, which needs `T: Send`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock of this rank around `value`.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, raw: RawLock::new(), value: UnsafeCell::new(value) }
    }

    /// Locks, waiting for the holder.
    #[inline]
    pub fn lock<'a, P: FramePlatform>(&'a self, platform: &'a P) -> SpinGuard<'a, T, P> {
        self.raw.lock(platform, self.rank);
        SpinGuard { lock: self, platform }
    }

    /// Locks if the lock is free.
    #[inline]
    pub fn try_lock<'a, P: FramePlatform>(&'a self, platform: &'a P) -> Option<SpinGuard<'a, T, P>> {
        // Not `then_some`: it would make and drop a guard even on failure, releasing the holder's lock.
        self.raw.try_lock(platform, self.rank).then(|| SpinGuard { lock: self, platform })
    }

    /// The value, without locking: the exclusive borrow proves that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to the value of a [`SpinLock`] until dropped.
pub struct SpinGuard<'a, T, P: FramePlatform> {
    lock: &'a SpinLock<T>,
    platform: &'a P,
}

impl<T, P: FramePlatform> Deref for SpinGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: the guard exists only while this task holds `raw`, which excludes every other guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: FramePlatform> DerefMut for SpinGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: L1: the guard exists only while this task holds `raw`; `&mut self` excludes another borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, P: FramePlatform> Drop for SpinGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock(self.platform, self.lock.rank);
    }
}
