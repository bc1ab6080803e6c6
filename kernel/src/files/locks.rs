//! Advisory locks: `flock(2)` of open files, and those of `fcntl(2)` on ranges of bytes.
//!
//! Both kinds are kept by node, in one table, as long as a lock exists. A lock has an owner: the descriptors of a
//! process (`F_SETLK`), or an open file (`F_OFD_SETLK`, and `flock`, whose locks cover the whole file).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;

use super::open::OpenFile;
use super::table::FileTable;
use crate::errno::Errno;
use crate::memory::list;
use crate::sync::Mutex;
use crate::task::wait::WaitQueue;

/// A node: its file system and its number.
type NodeKey = (u64, u64);

/// All locks.
static LOCKS: Mutex<BTreeMap<NodeKey, Vec<Lock>>> = Mutex::new(BTreeMap::new());
/// Woken whenever a lock goes.
static RELEASED: WaitQueue = WaitQueue::new();

/// Which locks exclude each other: `flock` and `fcntl` do not see each other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockSet {
    /// Those of `flock`.
    Whole,
    /// Those of `fcntl`.
    Ranges,
}

/// The owner of locks, which only its address names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(usize);

impl Owner {
    /// An open file.
    pub fn of_file(file: &OpenFile) -> Self {
        Self(ptr::from_ref(file).addr())
    }

    /// A process, by its descriptors.
    pub fn of_table(table: &FileTable) -> Self {
        Self(ptr::from_ref(table).addr())
    }
}

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Among which locks it is.
    pub set: LockSet,
    /// Its owner.
    pub owner: Owner,
    /// The process to name to others that ask (`F_GETLK`); `u32::MAX` for an open file's lock.
    pub process: u32,
    /// Whether it excludes all others, or only exclusive ones.
    pub exclusive: bool,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub last: u64,
}

impl Lock {
    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn conflicts(&self, other: &Self) -> bool {
        let excludes = self.exclusive || other.exclusive;
        self.set == other.set && self.owner != other.owner && excludes && self.overlaps(other)
    }

    fn is_alike(&self, other: &Self) -> bool {
        (self.set, self.owner) == (other.set, other.owner)
    }
}

/// The node of a file. Without the lock of the table: a file system may read its disk for the attributes.
fn key(file: &OpenFile) -> NodeKey {
    let attributes = file.attributes();
    (attributes.fs, attributes.number)
}

/// Takes a lock; it replaces what its owner has locked of the range.
///
/// # Errors
/// [`Errno::EAGAIN`] when another owner's lock is in the way and the caller does not wait; [`Errno::EINTR`],
/// [`Errno::EDEADLK`] are not told apart: a wait ends by a signal only; [`Errno::ENOLCK`] without memory.
pub fn acquire(file: &OpenFile, lock: Lock, waits: bool) -> Result<(), Errno> {
    let key = key(file);
    let attempt = || {
        let mut locks = LOCKS.lock();
        let held = locks.entry(key).or_default();
        if held.iter().any(|other| other.conflicts(&lock)) {
            return None;
        }
        let replaced = replace(held, &lock, true);
        drop(locks);
        if replaced == Ok(true) {
            RELEASED.wake_all();
        }
        Some(replaced.map(drop))
    };
    if waits { RELEASED.wait_until(attempt)? } else { attempt().ok_or(Errno::EAGAIN)? }
}

/// Gives up the lock that its owner has of the other type, shared or exclusive. `flock(2)` does so before it waits:
/// otherwise two owners that both change from shared to exclusive would wait for each other.
pub fn release_other_type(file: &OpenFile, lock: &Lock) {
    release_where(key(file), |held| held.is_alike(lock) && held.exclusive != lock.exclusive);
}

/// Gives up what the lock's owner has locked of its range.
///
/// # Errors
/// [`Errno::ENOLCK`] without memory: what is left on both sides of the range may need some.
pub fn release(file: &OpenFile, lock: Lock) -> Result<(), Errno> {
    let key = key(file);
    let mut locks = LOCKS.lock();
    if let Some(held) = locks.get_mut(&key) {
        replace(held, &lock, false)?;
        if held.is_empty() {
            locks.remove(&key);
        }
    }
    drop(locks);
    RELEASED.wake_all();
    Ok(())
}

/// Cuts the range of `lock` out of what its owner has, and puts the lock there if `keep`. Returns whether something
/// became free.
///
/// # Errors
/// [`Errno::ENOLCK`] without memory; nothing has changed then.
fn replace(held: &mut Vec<Lock>, lock: &Lock, keep: bool) -> Result<bool, Errno> {
    // An owner's locks do not overlap each other, so only the first and the last that are cut leave
    // something.
    list::reserve(held, 3).map_err(|_| Errno::ENOLCK)?;
    let (mut before, mut after) = (None, None);
    let mut freed = false;
    held.retain(|old| {
        let cut = old.is_alike(lock) && old.overlaps(lock);
        if cut {
            freed |= !keep || old.exclusive && !lock.exclusive;
            if old.start < lock.start {
                before = Some(Lock { last: lock.start - 1, ..*old });
            }
            if old.last > lock.last {
                after = Some(Lock { start: lock.last + 1, ..*old });
            }
        }
        !cut
    });
    held.extend(before.into_iter().chain(after).chain(keep.then_some(*lock)));
    Ok(freed)
}

/// The first lock of another owner that is in the way of this one.
pub fn conflict(file: &OpenFile, lock: &Lock) -> Option<Lock> {
    let key = key(file);
    let locks = LOCKS.lock();
    locks.get(&key)?.iter().filter(|other| other.conflicts(lock)).min_by_key(|other| other.start).copied()
}

/// An open file is gone, and with it its locks.
pub fn release_open_file(file: &OpenFile) {
    release_owner(file, Owner::of_file(file));
}

/// A process has closed a descriptor of a file: its locks of the file's node go, as POSIX wants it.
pub fn release_process_locks(table: &FileTable, file: &Arc<OpenFile>) {
    release_owner(file, Owner::of_table(table));
}

fn release_owner(file: &OpenFile, owner: Owner) {
    // Most files are closed while there is no lock at all. One that this owner has is in the table by now.
    if LOCKS.lock().is_empty() {
        return;
    }
    release_where(key(file), |lock| lock.owner == owner);
}

fn release_where(key: NodeKey, is_gone: impl Fn(&Lock) -> bool) {
    let mut locks = LOCKS.lock();
    let Some(held) = locks.get_mut(&key) else { return };
    let before = held.len();
    held.retain(|lock| !is_gone(lock));
    let freed = held.len() < before;
    if held.is_empty() {
        locks.remove(&key);
    }
    drop(locks);
    if freed {
        RELEASED.wake_all();
    }
}
