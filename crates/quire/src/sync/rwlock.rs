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
//! - *For a writer.* The sleeper adds `AWAITED` to the flag. A writer that leaves and finds that wakes all
//!   sleepers; each looks again, and says so again before it sleeps again.
//! - *For readers.* Only the writer that has the flag does. A slot holds one more than its readers, the
//!   lock's own one. The writer takes that one away before it sleeps. So the reader that makes a slot 0 wakes
//!   it, and finds this out from the subtraction itself: no reader looks at the flag on its way out.
//!
//! # Readers beside a writer
//!
//! A writer that has changed the value, and has long work left that changes it no more, *admits* readers
//! ([`WriteGuard::admit`]). It names a range of numbers first, the part of what the lock protects that the
//! work is about, and then adds `ADMITS` to the flag. A reader that names what it is about
//! ([`RwLock::read_beside`]) goes on if that lies outside the range; all others wait, as without. Such
//! readers that sleep already said so in the flag, and are woken.
//!
//! - The range does not change while a reader looks at it. A reader looks after it has set its mark. The
//!   writer that admits does not change the range again, and the next one does so when it has the lock to
//!   itself: after the reader's mark is gone.
//! - A writer that wants to change the value again takes `ADMITS` back and waits for the readers' marks, as
//!   when it took the lock. Its guard does so whenever it gives out an exclusive reference.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut, Range};

use super::{Pinned, Rank};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::limits::{LOCK_TURNS, READER_SLOTS};
use crate::platform::Platform;

/// No task holds the lock for writing, or waits until it may.
const FREE: u32 = 0;
/// A task holds the lock for writing, or waits for the last readers.
const HELD: u32 = 1;
/// Beside `HELD`: tasks sleep until the flag is `FREE`.
const AWAITED: u32 = 2;
/// Beside `HELD`: readers of what lies outside the writer's range go on.
const ADMITS: u32 = 4;
/// Beside `AWAITED`: readers that a writer may admit are among the sleepers.
const READERS_AWAIT: u32 = 8;

/// What a slot holds if there is no reader.
const EMPTY: u32 = 1;

#[repr(align(64))]
struct ReaderCount(AtomicU32);

/// A value that many tasks may read or one may change.
pub struct RwLock<T> {
    rank: Rank,
    writer: AtomicU32,
    readers: [ReaderCount; READER_SLOTS],
    /// The start and the end of what the writer that admits readers works on.
    kept: [AtomicU64; 2],
    /// How often a task began to have the value for itself, modulo 2^32. Only the lock's holder for writing
    /// changes it.
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
            kept: [const { AtomicU64::new(0) }; 2],
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
            self.wait_and_mark(platform, slot, None);
        }
        ReadGuard { lock: self, platform, slot }
    }

    /// As [`Self::read`], for a reader of nothing but `wanted`: does not wait for a writer that admits it.
    #[inline]
    pub fn read_beside<'a, P: Platform>(
        &'a self,
        platform: &'a P,
        wanted: impl FnOnce() -> Range<u64>,
    ) -> ReadGuard<'a, T, P> {
        platform.lock_taken(self.rank);
        let slot = Pinned::new(platform).cpu().index() % READER_SLOTS;
        self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
        if self.writer.load(Ordering::SeqCst) != FREE {
            self.mark_beside(platform, slot, wanted());
        }
        ReadGuard { lock: self, platform, slot }
    }

    /// Keeps a reader's mark if the writer admits it.
    #[cold]
    #[inline(never)]
    fn mark_beside<P: Platform>(&self, platform: &P, slot: usize, wanted: Range<u64>) {
        if !self.is_open_to(Some(&wanted)) {
            self.wait_and_mark(platform, slot, Some(&wanted));
        }
    }

    /// Withdraws a reader's mark, and sets it again when no writer keeps the reader out.
    #[cold]
    #[inline(never)]
    fn wait_and_mark<P: Platform>(&self, platform: &P, slot: usize, wanted: Option<&Range<u64>>) {
        loop {
            self.leave(platform, slot);
            self.wait_for_writer(platform, wanted);
            platform.lock_taken(self.rank);
            self.readers[slot].0.fetch_add(1, Ordering::SeqCst);
            if self.is_open_to(wanted) {
                return;
            }
        }
    }

    /// Whether no writer has the flag, or one that admits a reader of `wanted`. If the reader's mark was set
    /// before, the answer stands until the reader takes it back.
    fn is_open_to(&self, wanted: Option<&Range<u64>>) -> bool {
        self.admits(self.writer.load(Ordering::SeqCst), wanted)
    }

    /// The same for a flag that was seen.
    fn admits(&self, flag: u32, wanted: Option<&Range<u64>>) -> bool {
        let is_outside = |wanted: &Range<u64>| {
            let kept = self.kept();
            wanted.end <= kept.start || kept.end <= wanted.start
        };
        flag == FREE || flag & ADMITS != 0 && wanted.is_some_and(is_outside)
    }

    /// What the writer that admits readers works on.
    fn kept(&self) -> Range<u64> {
        let [start, end] = self.kept.each_ref().map(|end| end.load(Ordering::Relaxed));
        start..end
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

    /// Waits until the flag was free for a moment, or may let a reader of `wanted` pass. The task holds no
    /// lock.
    fn wait_for_writer<P: Platform>(&self, platform: &P, wanted: Option<&Range<u64>>) {
        loop {
            let mut seen = FREE;
            for _ in 0..LOCK_TURNS {
                seen = self.writer.load(Ordering::Acquire);
                if self.admits(seen, wanted) {
                    return;
                }
                platform.relax();
            }
            let awaited = seen | AWAITED | if wanted.is_some() { READERS_AWAIT } else { 0 };
            let said = self.writer.compare_exchange(seen, awaited, Ordering::Relaxed, Ordering::Relaxed);
            if said.is_ok() {
                platform.wait(&self.writer, awaited);
            }
        }
    }

    /// Locks for writing, waiting for readers and other writers. May sleep, as [`Self::read`].
    pub fn write<'a, P: Platform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        platform.lock_taken(self.rank);
        while !self.set_flag() {
            platform.lock_dropped(self.rank);
            self.wait_for_writer(platform, None);
            platform.lock_taken(self.rank);
        }
        self.wait_for_all_readers(platform);
        self.note_write();
        WriteGuard { lock: self, platform, ranked: true, admits: false }
    }

    /// Waits until no slot has a reader. The task has the writer's flag, which lets no reader in.
    #[inline(always)]
    fn wait_for_all_readers<P: Platform>(&self, platform: &P) {
        // Mostly nothing reads. CPUs use the first slots.
        for slot in self.readers.iter().take(platform.cpu_count()) {
            if slot.0.load(Ordering::SeqCst) != EMPTY {
                self.wait_for_readers(platform, &slot.0);
            }
        }
    }

    /// Sets the writer's flag if it is free.
    fn set_flag(&self) -> bool {
        self.writer.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the writer's flag back, and wakes the tasks that sleep until then. The task holds no lock.
    fn clear_flag<P: Platform>(&self, platform: &P) {
        if self.writer.swap(FREE, Ordering::SeqCst) & AWAITED != 0 {
            platform.wake(&self.writer);
        }
    }

    /// Admits readers of all but `kept`, and wakes the sleepers if some may be such readers. The task has the
    /// writer's flag, and does not change the value before [`Self::end_admission`].
    fn begin_admission<P: Platform>(&self, platform: &P, kept: &Range<u64>) {
        self.kept[0].store(kept.start, Ordering::Relaxed);
        self.kept[1].store(kept.end, Ordering::Relaxed);
        if self.writer.fetch_or(ADMITS, Ordering::SeqCst) & READERS_AWAIT != 0 {
            platform.wake(&self.writer);
        }
    }

    /// Admits no more readers, and waits until those that were admitted are gone.
    #[cold]
    #[inline(never)]
    fn end_admission<P: Platform>(&self, platform: &P) {
        self.writer.fetch_and(!ADMITS, Ordering::SeqCst);
        self.wait_for_all_readers(platform);
        // Admitted readers have seen the number, and the value may change again.
        self.note_write();
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
        Some(WriteGuard { lock: self, platform, ranked: true, admits: false })
    }

    /// Locks for writing a lock that nothing else names yet. No task can wait for it, so it has no rank here.
    pub(crate) fn write_unknown<'a, P: Platform>(&'a self, platform: &'a P) -> WriteGuard<'a, T, P> {
        let taken = self.set_flag();
        debug_assert!(taken, "the lock is in use");
        self.note_write();
        WriteGuard { lock: self, platform, ranked: false, admits: false }
    }

    /// Counts that the value may change from now on. No other task changes the number meanwhile.
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
    /// How often the lock was taken for writing, or got back for that from admitted readers, modulo 2^32.
    /// While it stays, so does the value.
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

    /// Lets readers of what lies outside `kept` in, until the guard is dropped or next gives out an exclusive
    /// reference: the latter then waits for them. Until then the range stays: readers may be next to it.
    pub fn admit(&mut self, kept: &Range<u64>) {
        debug_assert!(self.ranked, "nothing else names the lock");
        debug_assert!(!self.admits || self.lock.kept() == *kept, "readers were admitted for another range");
        if !self.admits {
            self.admits = true;
            self.lock.begin_admission(self.platform, kept);
        }
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

/// Exclusive access to the value of an [`RwLock`] until dropped; shared access while readers are admitted.
pub struct WriteGuard<'a, T, P: Platform> {
    lock: &'a RwLock<T>,
    platform: &'a P,
    ranked: bool,
    /// Whether readers are admitted, so that the value may not be changed.
    admits: bool,
}

impl<T, P: Platform> Deref for WriteGuard<'_, T, P> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: L1: the guard exists only while this task has the flag, and saw every reader's mark gone.
        // Readers that it admitted since have shared references too, and it gives out no exclusive one before
        // they are gone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, P: Platform> DerefMut for WriteGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        if self.admits {
            self.lock.end_admission(self.platform);
            self.admits = false;
        }
        // SAFETY: L1: the guard exists only while this task has the flag, after it saw every reader's mark
        // gone, again since readers were last admitted; `&mut self` excludes a second borrow through this
        // guard.
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
