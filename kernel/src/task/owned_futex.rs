//! Futexes with an owner (`FUTEX_LOCK_PI` and its like). Their word has the number of the task that holds the lock. Linux
//! lends the owner the priority of those that wait; tasks have no priorities here, and get the lock in the order in which
//! they came.
//!
//! What is known of a lock while tasks wait for it changes together with its word, under the lock of a bucket. The word
//! is exchanged there without a fault; if its page is not there, the call brings it in and begins again.
//!
//! A task that ends says so, and then gives up the locks that tasks wait for. One that comes for such a lock makes
//! its wait known, and then asks whether the owner ends. So one of the two sees the other, and no task waits for
//! an owner that is gone.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::futex::{BUCKETS, Key};
use super::thread::Task;
use super::{sched, table};
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::user::UserMemory;
use crate::sync::Mutex;
use crate::time;

const OWNER: u32 = abi::FUTEX_TID_MASK;
const WAITERS: u32 = abi::FUTEX_WAITERS;
const DIED: u32 = abi::FUTEX_OWNER_DIED;

/// Has not got the lock.
const WAITS: u8 = 0;
/// Has got it from its owner, with the word.
const GIVEN: u8 = 1;
/// Has got it at its owner's end, and must store the word.
const INHERITED: u8 = 2;

/// A task can hold locks ([`Task::owner_state`]).
const OWNS: u8 = 0;
/// It gives them up: what it leaves in their words is not there yet.
const LEAVES: u8 = 1;
/// It has given them up, and takes no more.
const GONE: u8 = 2;

/// A task that wants a lock.
pub struct Waiter {
    task: Arc<Task>,
    state: AtomicU8,
}

impl Waiter {
    /// The running task.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { task: sched::current(), state: AtomicU8::new(WAITS) })
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    fn give(&self, state: u8) {
        self.state.store(state, Ordering::Release);
        sched::wake(&self.task);
    }
}

/// A lock for which tasks wait, or whose new owner has not stored its word yet.
struct Lock {
    key: Key,
    owner: u32,
    /// The one that waits longest first.
    waiters: VecDeque<Arc<Waiter>>,
    /// The word names the owner.
    is_stored: bool,
}

type Bucket = Mutex<Vec<Lock>>;

static LOCKS: [Bucket; BUCKETS] = [const { Mutex::new(Vec::new()) }; BUCKETS];
/// How many there are in all buckets.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn bucket(key: Key) -> &'static Bucket {
    &LOCKS[key.bucket_number()]
}

fn find(locks: &mut [Lock], key: Key) -> Option<&mut Lock> {
    locks.iter_mut().find(|lock| lock.key == key)
}

/// Forgets a lock for which no task waits any more.
fn forget_unused(locks: &mut Vec<Lock>, key: Key) {
    let before = locks.len();
    locks.retain(|lock| lock.key != key || !lock.waiters.is_empty() || !lock.is_stored);
    COUNT.fetch_sub(before - locks.len(), Ordering::Relaxed);
}

/// Where a lock is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// What it is known by.
    pub key: Key,
    /// The address of its word.
    pub addr: VirtAddr,
}

/// What an attempt has come to.
#[derive(PartialEq, Eq)]
enum Attempt {
    /// The first of the tasks holds the lock. The others wait for it.
    Held,
    /// All wait for it.
    Waits,
    /// Something has changed meanwhile.
    Again,
}

/// The word of a lock as it was when the running task looked.
pub struct Seen {
    value: u32,
    /// The task that it names, unless that is gone.
    owner: Option<Arc<Task>>,
}

impl Seen {
    /// Whether its owner may have looked already for those that wait for it. One that has executed a program may
    /// have another number since.
    fn is_left(&self) -> bool {
        self.owner.as_ref().is_none_or(|owner| {
            owner.owner_state.load(Ordering::SeqCst) != OWNS || owner.id() != self.value & OWNER
        })
    }
}

/// Looks at the word of a lock, which may sleep.
///
/// # Errors
/// [`Errno::EFAULT`] where the running task cannot store.
pub fn look(place: Place) -> Result<Seen, Errno> {
    let value = UserMemory::of(sched::current_ref().space()).update_u32(place.addr, Some)?;
    // One that is gone is none: those that ask for it in turns could keep it for ever.
    let is_there = |task: &Arc<Task>| task.owner_state.load(Ordering::SeqCst) != GONE;
    Ok(Seen { value, owner: table::task(value & OWNER).filter(is_there) })
}

/// Lets tasks have a lock, or wait for it: the first of them gets it if it is free. The running task makes the attempt,
/// for itself or for others, and does not sleep. With `tries` none waits.
///
/// # Errors
/// [`Errno::EDEADLK`] if the first one holds it, [`Errno::ESRCH`] if its owner does not exist, [`Errno::EINVAL`] if the word
/// names another owner than the kernel knows; [`Errno::EAGAIN`], [`Errno::EFAULT`], [`Errno::ENOMEM`].
fn attempt(place: Place, seen: &Seen, waiters: &[Arc<Waiter>], tries: bool) -> Result<Attempt, Errno> {
    let memory = UserMemory::of(sched::current_ref().space());
    let Some(first) = waiters.first() else { return Ok(Attempt::Held) };
    let found = seen.value;
    let (owner, id) = (found & OWNER, first.task.id());
    if owner == id {
        return Err(Errno::EDEADLK);
    }
    let mut locks = bucket(place.key).lock();
    // The word was read without the lock.
    let is_current = || memory.exchange_u32(place.addr, found, found) == Some(found);
    let lock = find(&mut locks, place.key);
    let is_free = match &lock {
        None if owner == 0 => true,
        None if seen.owner.is_none() => {
            return if is_current() { Err(Errno::ESRCH) } else { Ok(Attempt::Again) };
        }
        None => false,
        Some(lock) if !lock.is_stored => return Ok(Attempt::Again),
        Some(lock) if lock.owner != owner => {
            return if is_current() { Err(Errno::EINVAL) } else { Ok(Attempt::Again) };
        }
        Some(_) => false,
    };
    if !is_free && tries {
        return Err(Errno::EAGAIN);
    }
    let waiting = if is_free { &waiters[1..] } else { waiters };
    if !waiting.is_empty() {
        enlist(&mut locks, place.key, if is_free { id } else { owner }, waiting)?;
    }
    let more = if waiting.is_empty() { 0 } else { WAITERS };
    let new = if is_free { found & DIED | id | more } else { found | WAITERS };
    // After the list: see above.
    let is_left = !is_free && seen.is_left();
    if !is_left && memory.exchange_u32(place.addr, found, new) == Some(found) {
        return Ok(if is_free { Attempt::Held } else { Attempt::Waits });
    }
    // As if they had not come.
    if let Some(lock) = find(&mut locks, place.key) {
        lock.waiters.retain(|waiter| !waiting.iter().any(|other| Arc::ptr_eq(waiter, other)));
    }
    forget_unused(&mut locks, place.key);
    Ok(Attempt::Again)
}

fn enlist(locks: &mut Vec<Lock>, key: Key, owner: u32, waiters: &[Arc<Waiter>]) -> Result<(), Errno> {
    if find(locks, key).is_none() {
        list::append(locks, [Lock { key, owner, waiters: VecDeque::new(), is_stored: true }])?;
        COUNT.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(lock) = find(locks, key) {
        let has_room = lock.waiters.try_reserve(waiters.len()).is_ok();
        if has_room {
            lock.waiters.extend(waiters.iter().cloned());
            return Ok(());
        }
    }
    forget_unused(locks, key);
    Err(Errno::ENOMEM)
}

/// Takes a lock for the running task, which waits for it until `deadline`, or not at all with `tries`.
///
/// # Errors
/// As for [`attempt`]; [`Errno::EINTR`], [`Errno::ETIMEDOUT`].
pub fn lock(place: Place, deadline: Option<u64>, tries: bool) -> Result<(), Errno> {
    let waiter = Waiter::new();
    loop {
        let seen = look(place)?;
        match attempt(place, &seen, core::slice::from_ref(&waiter), tries)? {
            Attempt::Held => return Ok(()),
            Attempt::Waits => break,
            Attempt::Again if waiter.task.is_dying() => return Err(Errno::EINTR),
            Attempt::Again => {
                drop(seen);
                sched::schedule();
            }
        }
    }
    let slept = sleep(&waiter, deadline);
    finish(place, &waiter, slept)
}

/// Sleeps until the waiter has got its lock.
///
/// # Errors
/// [`Errno::EINTR`], [`Errno::ETIMEDOUT`].
pub fn sleep(waiter: &Waiter, deadline: Option<u64>) -> Result<(), Errno> {
    let task = &waiter.task;
    let _alarm = deadline.map(|deadline| time::wake_at(deadline, task.clone()));
    while waiter.state() == WAITS {
        if task.is_interrupted() {
            return Err(Errno::EINTR);
        }
        if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
            return Err(Errno::ETIMEDOUT);
        }
        sched::park();
    }
    Ok(())
}

/// The running task's wait has ended. It may have got the lock even if its time was up.
///
/// # Errors
/// That of the wait; [`Errno::EFAULT`].
pub fn finish(place: Place, waiter: &Arc<Waiter>, slept: Result<(), Errno>) -> Result<(), Errno> {
    let mut locks = bucket(place.key).lock();
    match waiter.state() {
        WAITS => {
            if let Some(lock) = find(&mut locks, place.key) {
                lock.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
            }
            forget_unused(&mut locks, place.key);
            slept
        }
        INHERITED => {
            drop(locks);
            let new = waiter.task.id() | DIED | WAITERS;
            let stored = UserMemory::of(sched::current_ref().space()).update_u32(place.addr, |_| Some(new));
            let mut locks = bucket(place.key).lock();
            if let Some(lock) = find(&mut locks, place.key) {
                lock.is_stored = true;
            }
            forget_unused(&mut locks, place.key);
            stored.map(drop)
        }
        _ => Ok(()),
    }
}

/// The running task gives a lock up: the task that waits longest gets it.
///
/// # Errors
/// [`Errno::EPERM`] if the running task does not hold it, [`Errno::EINVAL`], [`Errno::EFAULT`].
pub fn unlock(task: &Task, place: Place) -> Result<(), Errno> {
    let memory = UserMemory::of(task.space());
    loop {
        let found = memory.read_u32(place.addr)?;
        if found & OWNER != task.id() {
            return Err(Errno::EPERM);
        }
        let mut locks = bucket(place.key).lock();
        let next = match find(&mut locks, place.key) {
            Some(lock) if lock.owner != task.id() => return Err(Errno::EINVAL),
            Some(lock) => lock.waiters.front().cloned(),
            None => None,
        };
        let new = next.as_ref().map_or(0, |next| next.task.id() | WAITERS);
        if memory.exchange_u32(place.addr, found, new) == Some(found) {
            if let (Some(lock), Some(next)) = (find(&mut locks, place.key), next) {
                lock.waiters.pop_front();
                lock.owner = next.task.id();
                next.give(GIVEN);
            }
            forget_unused(&mut locks, place.key);
            return Ok(());
        }
        drop(locks);
        memory.update_u32(place.addr, Some)?;
    }
}

/// Tasks that wait elsewhere get a lock or wait for it (`FUTEX_CMP_REQUEUE_PI`). `false`: its word has changed since it was
/// seen, or is about to change.
///
/// # Errors
/// As for [`attempt`].
pub fn requeue(place: Place, seen: &Seen, waiters: &[Arc<Waiter>]) -> Result<bool, Errno> {
    let attempt = attempt(place, seen, waiters, false)?;
    if attempt == Attempt::Held
        && let Some(first) = waiters.first()
    {
        first.give(GIVEN);
    }
    Ok(attempt != Attempt::Again)
}

/// A task has ended, and what it leaves in the words of its locks is there.
pub fn set_gone(task: &Task) {
    task.owner_state.store(GONE, Ordering::SeqCst);
}

/// A task that has given up the locks of its old program can hold some again.
pub fn begin(task: &Task) {
    task.owner_state.store(OWNS, Ordering::SeqCst);
}

/// A task ends: the locks that it holds go to tasks that wait for them.
pub fn end(task: &Task) {
    // Before it looks, also for how many locks there are.
    task.owner_state.store(LEAVES, Ordering::SeqCst);
    if COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    for bucket in &LOCKS {
        let mut locks = bucket.lock();
        for lock in locks.iter_mut().filter(|lock| lock.owner == task.id()) {
            match lock.waiters.pop_front() {
                Some(next) => {
                    (lock.owner, lock.is_stored) = (next.task.id(), false);
                    next.give(INHERITED);
                }
                None => lock.is_stored = true,
            }
        }
        let before = locks.len();
        locks.retain(|lock| !lock.waiters.is_empty() || !lock.is_stored);
        COUNT.fetch_sub(before - locks.len(), Ordering::Relaxed);
    }
}
