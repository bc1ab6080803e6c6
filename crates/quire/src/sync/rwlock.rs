//! A reader-writer lock whose readers do not share a cache line, and whose waiters sleep.
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
//!
//! # Sleep
//!
//! A waiter looks a few times and then sleeps ([`Platform::wait`]), since a holder may work for milliseconds,
//! or may be a task that lost its CPU.
//!
//! - *For a writer.* The sleeper makes the flag `AWAITED`. A writer that leaves and finds that wakes all
//!   sleepers; each looks again, and says so again before it sleeps again.
//! - *For readers.* Only the writer that has the flag does. A slot holds one more than its readers, the lock's
//!   own mark. The writer takes that mark before it sleeps. So the reader that makes a slot 0 wakes it, and
//!   finds this out from the subtraction itself: no reader looks at the flag on its way out.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::{Pinned, Rank};
use crate::atomic::{AtomicU32, Ordering};
use crate::limits::{LOCK_TURNS, READER_SLOTS};
use crate::platform::Platform;

/// No task holds the lock for writing, or waits until it may.
const FREE: u32 = 0;
/// A task holds the lock for writing, or waits for the last readers.
const HELD: u32 = 1;
/// As `HELD`, and tasks sleep until it is `FREE`.
const AWAITED: u32 = 2;

/// What a slot holds if there is no reader.
const EMPTY: u32 = 1;

#[repr(align(64))]
struct ReaderCount(AtomicU32);

/// A value that many tasks may read or one may change.
pub struct RwLock<T> {
    rank: Rank,
    writer: AtomicU32,
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
            writer: AtomicU32::new(FREE),
            readers: [const { ReaderCount(AtomicU32::new(EMPTY)) }; READER_SLOTS],
            writes: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks for reading, waiting for a writer. May sleep: a task, not pinned, that holds no other lock.
    #[inline]
    pub fn read<'a, P: Platform>(&'a self, platform: &'a P) -> ReadGuard<'a, T, P> {
        platform.lock_taken(self.rank);
        let slot = Pinned::new(platform).cpu().index() % READER_SLOTS;
        self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
        if self.writer.load(Ordering::SeqCst) != FREE {
            self.wait_and_mark(platform, slot);
        }
        ReadGuard { lock: self, platform, slot }
    }

    /// Withdraws a reader's mark, and sets it again when no writer is there.
    #[cold]
    #[inline(never)]
    fn wait_and_mark<P: Platform>(&self, platform: &P, slot: usize) {
        loop {
            self.leave(platform, slot);
            self.wait_for_writer(platform);
            platform.lock_taken(self.rank);
            self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
            if self.writer.load(Ordering::SeqCst) == FREE {
                return;
            }
        }
    }

    /// Takes a reader's mark back.
    #[inline]
    fn leave<P: Platform>(&self, platform: &P, slot: usize) {
        let count = &self.readers[slot].0;
        // Reported first, so that the branch can use the flags which the subtraction sets.
        platform.lock_dropped(self.rank);
        if count.fetch_sub(1, Ordering::SeqCst) == 1 {
            wake_writer(platform, count);
        }
    }

    /// Waits until the flag was free for a moment. The task holds no lock.
    fn wait_for_writer<P: Platform>(&self, platform: &P) {
        loop {
            for _ in 0..LOCK_TURNS {
                if self.writer.load(Ordering::Relaxed) == FREE {
                    return;
                }
                platform.relax();
            }
            let said = self.writer.compare_exchange(HELD, AWAITED, Ordering::Relaxed, Ordering::Relaxed);
            if said != Err(FREE) {
                platform.wait(&self.writer, AWAITED);
            }
        }
    }

    /// Locks for writing, waiting for readers and other writers. May sleep, as [`Self::read`].
    pub fn write<'a, P: Platform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        platform.lock_taken(self.rank);
        while !self.set_flag() {
            platform.lock_dropped(self.rank);
            self.wait_for_writer(platform);
            platform.lock_taken(self.rank);
        }
        // Mostly nothing reads. CPUs use the first slots.
        for slot in self.readers.iter().take(platform.cpu_count()) {
            if slot.0.load(Ordering::SeqCst) != EMPTY {
                self.wait_for_readers(platform, &slot.0);
            }
        }
        self.note_write();
        WriteGuard { lock: self, platform, ranked: true }
    }

    /// Sets the writer's flag if it is free.
    fn set_flag(&self) -> bool {
        self.writer.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the writer's flag back, and wakes the tasks that sleep until then. The task holds no lock.
    fn clear_flag<P: Platform>(&self, platform: &P) {
        if self.writer.swap(FREE, Ordering::SeqCst) == AWAITED {
            platform.wake(&self.writer);
        }
    }

    /// Waits until a slot has no reader. The task has the writer's flag, and holds no other lock.
    #[cold]
    #[inline(never)]
    fn wait_for_readers<P: Platform>(&self, platform: &P, slot: &AtomicU32) {
        for _ in 0..LOCK_TURNS {
            platform.relax();
            if slot.load(Ordering::SeqCst) == EMPTY {
                return;
            }
        }
        platform.lock_dropped(self.rank);
        let mut left = slot.fetch_sub(EMPTY, Ordering::SeqCst) - EMPTY;
        while left != 0 {
            platform.wait(slot, left);
            platform.relax();
            left = slot.load(Ordering::SeqCst);
        }
        slot.fetch_add(EMPTY, Ordering::SeqCst);
        platform.lock_taken(self.rank);
    }

    /// Locks for writing if no other task holds the lock now.
    pub(crate) fn try_write<'a, P: Platform>(&'a self, platform: &'a P) -> Option<WriteGuard<'a, T, P>> {
        if !self.set_flag() {
            return None;
        }
        let is_read = |slot: &ReaderCount| slot.0.load(Ordering::SeqCst) != EMPTY;
        if self.readers.iter().take(platform.cpu_count()).any(is_read) {
            self.clear_flag(platform);
            return None;
        }
        platform.lock_taken(self.rank);
        self.note_write();
        Some(WriteGuard { lock: self, platform, ranked: true })
    }

    /// Locks for writing a lock that nothing else names yet. No task can wait for it, so it has no rank here.
    pub(crate) fn write_unknown<'a, P: Platform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        let taken = self.set_flag();
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

/// Wakes the writer that sleeps until this slot has no reader.
#[cold]
#[inline(never)]
fn wake_writer<P: Platform>(platform: &P, slot: &AtomicU32) {
    platform.wake(slot);
}

/// Shared access to the value of an [`RwLock`] until dropped.
pub struct ReadGuard<'a, T, P: Platform> {
    lock: &'a RwLock<T>,
    platform: &'a P,
    slot: usize,
}

impl<T, P: Platform> ReadGuard<'_, T, P> {
    /// How often the lock was taken for writing, modulo 2^32. While it stays, so does the value.
    #[inline]
    pub fn writes(&self) -> u32 {
        self.lock.writes.load(Ordering::Relaxed)
    }
}

impl<T, P: Platform> WriteGuard<'_, T, P> {
    /// As [`ReadGuard::writes`], this holder included.
    #[inline]
    pub fn writes(&self) -> u32 {
        self.lock.writes.load(Ordering::Relaxed)
    }
}

impl<T, P: Platform> Deref for ReadGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: this guard's mark in `readers` keeps every writer out until it is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: Platform> Drop for ReadGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(self.platform, self.slot);
    }
}

/// Exclusive access to the value of an [`RwLock`] until dropped.
pub struct WriteGuard<'a, T, P: Platform> {
    lock: &'a RwLock<T>,
    platform: &'a P,
    ranked: bool,
}

impl<T, P: Platform> Deref for WriteGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: the guard exists only while this task has the flag, and saw every reader's mark gone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: Platform> DerefMut for WriteGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: L1: the guard exists only while this task has the flag, after it saw every reader's mark
        // gone; `&mut self` excludes a second borrow through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, P: Platform> Drop for WriteGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        if self.ranked {
            self.platform.lock_dropped(self.lock.rank);
        }
        self.lock.clear_flag(self.platform);
    }
}
