//! A reader-writer lock whose readers do not share a cache line.
//!
//! Page faults on every CPU take it for reading at once, so the count of readers is split: a reader counts
//! itself in the slot of its current CPU, and remembers the slot. A writer sets a flag, which keeps new
//! readers out, and waits until every slot is empty. Writers are served one at a time and never starve; a
//! reader that meets a writer withdraws and waits.
//!
//! The reader stores its mark and then loads the writer's flag; the writer stores the flag and then loads the
//! marks. All four are sequentially consistent, so at least one of the two sees the other. The stores that
//! take mark and flag back need not be, but are: checkers that let a sequentially consistent load return an
//! older store of another order would see a race. This costs an exchange for each writer.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::{Pinned, Rank, RawLock};
use crate::atomic::{AtomicU32, Ordering};
use crate::limits::READER_SLOTS;
use crate::platform::FramePlatform;

#[repr(align(64))]
struct ReaderCount(AtomicU32);

/// A value that many tasks may read or one may change.
pub struct RwLock<T> {
    rank: Rank,
    writer: RawLock,
    readers: [ReaderCount; READER_SLOTS],
    /// How often the lock was taken for writing, modulo 2^32. Only its holder for writing changes it.
    writes: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: L1: readers' guards give out shared references to `value`, which needs `T: Sync`. The one writer's
// guard gives out an exclusive one, which hands the value from thread to thread and needs `T: Send`.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    /// An unlocked lock of this rank around `value`.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            writer: RawLock::new(),
            readers: [const { ReaderCount(AtomicU32::new(0)) }; READER_SLOTS],
            writes: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks for reading, waiting for a writer.
    #[inline]
    pub fn read<'a, P: FramePlatform>(&'a self, platform: &'a P) -> ReadGuard<'a, T, P> {
        platform.lock_taken(self.rank);
        let slot = Pinned::new(platform).cpu().index() % READER_SLOTS;
        self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
        if self.writer.is_locked_seq() {
            self.wait_and_mark(platform, slot);
        }
        ReadGuard { lock: self, platform, slot }
    }

    /// Withdraws a reader's mark, and sets it again when no writer is there.
    #[cold]
    #[inline(never)]
    fn wait_and_mark<P: FramePlatform>(&self, platform: &P, slot: usize) {
        loop {
            self.readers[slot].0.fetch_sub(1, Ordering::SeqCst);
            while self.writer.is_locked() {
                platform.relax();
            }
            self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
            if !self.writer.is_locked_seq() {
                return;
            }
        }
    }

    /// Locks for writing, waiting for readers and other writers.
    pub fn write<'a, P: FramePlatform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        self.writer.lock_seq(platform, self.rank);
        // Mostly nothing reads. CPUs use the first slots.
        for slot in self.readers.iter().take(platform.cpu_count()) {
            while slot.0.load(Ordering::SeqCst) != 0 {
                platform.relax();
            }
        }
        self.note_write();
        WriteGuard { lock: self, platform, ranked: true }
    }

    /// Locks for writing if no other task holds the lock now.
    pub(crate) fn try_write<'a, P: FramePlatform>(&'a self, platform: &'a P) -> Option<WriteGuard<'a, T, P>> {
        if !self.writer.try_lock_seq() {
            return None;
        }
        if self.readers.iter().take(platform.cpu_count()).any(|slot| slot.0.load(Ordering::SeqCst) != 0) {
            self.writer.unlock_seq();
            return None;
        }
        platform.lock_taken(self.rank);
        self.note_write();
        Some(WriteGuard { lock: self, platform, ranked: true })
    }

    /// Locks for writing a lock that nothing else names yet. No task can wait for it, so it has no rank here.
    pub(crate) fn write_unknown<'a, P: FramePlatform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        let taken = self.writer.try_lock_seq();
        debug_assert!(taken, "the lock is in use");
        self.note_write();
        WriteGuard { lock: self, platform, ranked: false }
    }

    /// Counts that the lock was taken for writing. No other task changes the number meanwhile.
    fn note_write(&self) {
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The value, without locking: the exclusive borrow proves that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Shared access to the value of an [`RwLock`] until dropped.
pub struct ReadGuard<'a, T, P: FramePlatform> {
    lock: &'a RwLock<T>,
    platform: &'a P,
    slot: usize,
}

impl<T, P: FramePlatform> ReadGuard<'_, T, P> {
    /// How often the lock was taken for writing, modulo 2^32. While it stays, so does the value.
    #[inline]
    pub fn writes(&self) -> u32 {
        self.lock.writes.load(Ordering::Relaxed)
    }
}

impl<T, P: FramePlatform> WriteGuard<'_, T, P> {
    /// As [`ReadGuard::writes`], this holder included.
    #[inline]
    pub fn writes(&self) -> u32 {
        self.lock.writes.load(Ordering::Relaxed)
    }
}

impl<T, P: FramePlatform> Deref for ReadGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: this guard's mark in `readers` keeps every writer out until it is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: FramePlatform> Drop for ReadGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.readers[self.slot].0.fetch_sub(1, Ordering::SeqCst);
        self.platform.lock_dropped(self.lock.rank);
    }
}

/// Exclusive access to the value of an [`RwLock`] until dropped.
pub struct WriteGuard<'a, T, P: FramePlatform> {
    lock: &'a RwLock<T>,
    platform: &'a P,
    ranked: bool,
}

impl<T, P: FramePlatform> Deref for WriteGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: the guard exists only while this task holds `writer`, and saw every reader's mark gone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: FramePlatform> DerefMut for WriteGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: L1: the guard exists only while this task holds `writer`, after it saw every reader's mark
        // gone; `&mut self` excludes a second borrow through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, P: FramePlatform> Drop for WriteGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.writer.unlock_seq();
        if self.ranked {
            self.platform.lock_dropped(self.lock.rank);
        }
    }
}
