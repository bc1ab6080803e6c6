//! Futexes (`futex(2)`): a task sleeps until another one wakes it at an address.
//!
//! A waiter first enters the queue and then reads the word. A waker first changes the word and then looks into the
//! queue. So a waiter that has read the old value is found.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;

use super::owned_futex::{self, Place};
use super::sched;
use super::thread::Task;
use crate::errno::Errno;
use crate::memory::list;
use crate::memory::user::UserMemory;
use crate::sync::Mutex;
use crate::time;

pub(super) const BUCKETS: usize = 64;
/// Waiters with any bit.
pub const ANY: u32 = u32::MAX;
/// The most entries of a robust list that are followed, as in Linux.
const ROBUST_LIMIT: usize = 2048;

/// What a futex is known by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// The address in one address space, by its number: with `FUTEX_PRIVATE_FLAG`, and in private mappings. The
    /// frame there may change while a task waits: a store after `fork` copies the page.
    Private(u64, u64),
    /// The byte of a mapped file, by the file's number, for address spaces that share it.
    Shared(u64, u64),
}

impl Key {
    /// The key of an address in the running task's memory.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an address that is not a multiple of 4, [`Errno::EFAULT`] where no memory is.
    pub fn of(task: &Task, addr: VirtAddr, private: bool) -> Result<Self, Errno> {
        if !addr.0.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        if private {
            return Ok(Self::Private(task.space().number(), addr.0));
        }
        UserMemory::of(task.space()).read_u32(addr)?;
        let vma = task.space().next_vma(addr).filter(|vma| vma.range.contains(addr)).ok_or(Errno::EFAULT)?;
        Ok(match vma.file {
            Some((_, page)) if vma.flags.contains(VmaFlags::SHARED) => {
                let start = page.wrapping_mul(FRAME_SIZE);
                Self::Shared(vma.file_number, start.wrapping_add(addr.0 - vma.range.start.0))
            }
            _ => Self::Private(task.space().number(), addr.0),
        })
    }

    fn bucket(self) -> &'static Bucket {
        &QUEUES[self.bucket_number()]
    }

    pub(super) fn bucket_number(self) -> usize {
        let word = match self {
            Self::Private(space, addr) => addr ^ space << 32,
            Self::Shared(file, byte) => file.rotate_left(32) ^ byte,
        };
        let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 58) as usize % BUCKETS
    }
}

struct Waiter {
    task: Arc<Task>,
    /// Changes while the buckets of the old and of the new key are locked.
    key: Mutex<Key>,
    bits: u32,
    woken: AtomicBool,
    /// It waits to be moved to this lock (`FUTEX_WAIT_REQUEUE_PI`), and nothing else wakes it.
    lock: Option<(Key, Arc<owned_futex::Waiter>)>,
}

/// The waiters of some keys, the one that waits longest first.
type Bucket = Mutex<Vec<Arc<Waiter>>>;

static QUEUES: [Bucket; BUCKETS] = [const { Mutex::new(Vec::new()) }; BUCKETS];

/// A word to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// What it is known by.
    pub key: Key,
    /// Where it is.
    pub addr: VirtAddr,
    /// The value that it must still have.
    pub expected: u32,
}

/// Sleeps until one of these words is woken, if each still has its value. Until `deadline`, if there is one. Returns
/// which one it was.
///
/// # Errors
/// [`Errno::EAGAIN`] if one has another value, [`Errno::ETIMEDOUT`], [`Errno::EINTR`], [`Errno::EFAULT`],
/// [`Errno::ENOMEM`].
pub fn wait(words: &[Word], bits: u32, deadline: Option<u64>) -> Result<usize, Errno> {
    let task = sched::current();
    let mut waiters: Vec<Arc<Waiter>> = Vec::new();
    waiters.try_reserve_exact(words.len()).map_err(|_| Errno::ENOMEM)?;
    let entered = words.iter().try_for_each(|word| {
        waiters.push(enter(word, bits, None)?);
        check(word)
    });
    let result = entered.and_then(|()| sleep(&waiters, &task, deadline));
    waiters.iter().for_each(leave);
    // A task that was woken has used up the wake-up, whatever else happened.
    woken(&waiters).ok_or_else(|| result.err().unwrap_or(Errno::EINTR))
}

/// The running task enters the queue of a word.
fn enter(
    word: &Word,
    bits: u32,
    lock: Option<(Key, Arc<owned_futex::Waiter>)>,
) -> Result<Arc<Waiter>, Errno> {
    let (key, woken) = (Mutex::new(word.key), AtomicBool::new(false));
    let waiter = Arc::new(Waiter { task: sched::current(), key, bits, woken, lock });
    list::append(&mut word.key.bucket().lock(), [waiter.clone()])?;
    Ok(waiter)
}

fn check(word: &Word) -> Result<(), Errno> {
    let value = UserMemory::of(sched::current_ref().space()).read_u32(word.addr)?;
    if value == word.expected { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// Sleeps until another task moves the running one to a lock, and the running one holds that (`FUTEX_WAIT_REQUEUE_PI`).
///
/// # Errors
/// As for [`wait`]; [`Errno::EAGAIN`] also when a signal arrives after the move.
pub fn wait_for_lock(word: &Word, lock: Place, deadline: Option<u64>) -> Result<(), Errno> {
    let own = owned_futex::Waiter::new();
    let waiter = enter(word, ANY, Some((lock.key, own.clone())))?;
    let slept = check(word).and_then(|()| owned_futex::sleep(&own, deadline));
    let was_moved = {
        let mut queue = word.key.bucket().lock();
        let before = queue.len();
        queue.retain(|other| !Arc::ptr_eq(other, &waiter));
        queue.len() == before
    };
    if !was_moved {
        return slept;
    }
    // The word that it waited for has another value by now.
    let again = |errno| if errno == Errno::EINTR { Errno::EAGAIN } else { errno };
    owned_futex::finish(lock, &own, slept.map_err(again))
}

/// Moves up to `most` tasks from a word, if it has the value, to a lock (`FUTEX_CMP_REQUEUE_PI`). Returns how many.
///
/// # Errors
/// [`Errno::EINVAL`] if one of them does not wait for that lock; as for [`owned_futex::lock`].
pub fn requeue_to_lock(word: &Word, lock: Place, most: u64) -> Result<u64, Errno> {
    loop {
        check(word)?;
        let seen = owned_futex::look(lock)?;
        let mut queue = word.key.bucket().lock();
        let mut chosen: Vec<Arc<owned_futex::Waiter>> = Vec::new();
        for waiter in queue.iter().filter(|waiter| *waiter.key.lock() == word.key) {
            if chosen.len() as u64 == most {
                break;
            }
            let (key, own) = waiter.lock.as_ref().ok_or(Errno::EINVAL)?;
            if *key != lock.key {
                return Err(Errno::EINVAL);
            }
            list::append(&mut chosen, [own.clone()])?;
        }
        if owned_futex::requeue(lock, &seen, &chosen)? {
            let is_moved =
                |own: &Arc<owned_futex::Waiter>| chosen.iter().any(|other| Arc::ptr_eq(own, other));
            queue.retain(|waiter| waiter.lock.as_ref().is_none_or(|(_, own)| !is_moved(own)));
            return Ok(chosen.len() as u64);
        }
        drop(queue);
        drop(seen);
        if sched::current_ref().is_dying() {
            return Err(Errno::EINTR);
        }
        sched::schedule();
    }
}

fn woken(waiters: &[Arc<Waiter>]) -> Option<usize> {
    waiters.iter().position(|waiter| waiter.woken.load(Ordering::Acquire))
}

fn sleep(waiters: &[Arc<Waiter>], task: &Arc<Task>, deadline: Option<u64>) -> Result<(), Errno> {
    let _alarm = deadline.map(|deadline| time::wake_at(deadline, task.clone()));
    while woken(waiters).is_none() {
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

/// Takes the waiter out of the queue that it is in, wherever a requeue has put it.
fn leave(waiter: &Arc<Waiter>) {
    loop {
        let key = *waiter.key.lock();
        let mut queue = key.bucket().lock();
        if *waiter.key.lock() != key {
            continue;
        }
        queue.retain(|other| !Arc::ptr_eq(other, waiter));
        return;
    }
}

/// Wakes up to `most` waiters of a private futex of the running task, and shared ones at this address.
///
/// # Errors
/// As for [`Key::of`].
pub fn wake(task: &Task, addr: VirtAddr, most: u32) -> Result<u64, Errno> {
    let (private, shared) = (Key::of(task, addr, true)?, Key::of(task, addr, false)?);
    let woken = wake_key(private, most, ANY)?;
    Ok(if shared == private { woken } else { woken + wake_key(shared, most, ANY)? })
}

/// Wakes up to `most` waiters that have one of the bits. Returns how many.
///
/// # Errors
/// [`Errno::EINVAL`] at a waiter that waits to be moved to a lock.
pub fn wake_key(key: Key, most: u32, bits: u32) -> Result<u64, Errno> {
    let (mut count, mut is_wrong) = (0, false);
    key.bucket().lock().retain(|waiter| {
        let wanted = count < u64::from(most) && *waiter.key.lock() == key && waiter.bits & bits != 0;
        is_wrong |= wanted && waiter.lock.is_some();
        let chosen = wanted && !is_wrong;
        if chosen {
            count += 1;
            waiter.woken.store(true, Ordering::Release);
            sched::wake(&waiter.task);
        }
        !chosen
    });
    if is_wrong { Err(Errno::EINVAL) } else { Ok(count) }
}

/// Wakes up to `most` waiters, and moves up to `move_most` others to another futex. Returns how many were woken and
/// how many moved.
///
/// # Errors
/// [`Errno::ENOMEM`]; none moved then. As for [`wake_key`].
pub fn requeue(from: Key, to: Key, most: u32, move_most: u32) -> Result<(u64, u64), Errno> {
    let woken = wake_key(from, most, ANY)?;
    let is_chosen = |waiter: &mut Arc<Waiter>| *waiter.key.lock() == from;
    let refuses = |queue: &[Arc<Waiter>]| {
        queue.iter().any(|waiter| *waiter.key.lock() == from && waiter.lock.is_some()) && move_most > 0
    };
    let (first, second) = (from.bucket_number(), to.bucket_number());
    if first == second {
        let mut queue = from.bucket().lock();
        if refuses(&queue) {
            return Err(Errno::EINVAL);
        }
        let chosen = queue.iter_mut().filter_map(|waiter| is_chosen(waiter).then_some(waiter));
        let moved = chosen.take(move_most as usize).map(|waiter| *waiter.key.lock() = to).count();
        return Ok((woken, moved as u64));
    }
    // Both are locked at once, in one order for all: a waiter that leaves meanwhile finds itself in one of
    // them.
    let lower = QUEUES[first.min(second)].lock();
    let upper = QUEUES[first.max(second)].lock();
    let (mut old, mut new) = if first < second { (lower, upper) } else { (upper, lower) };
    if refuses(&old) {
        return Err(Errno::EINVAL);
    }
    let count =
        old.iter_mut().filter_map(|waiter| is_chosen(waiter).then_some(())).take(move_most as usize).count();
    list::reserve(&mut new, count)?;
    let mut left = count;
    new.extend(old.extract_if(.., |waiter| {
        let chosen = left > 0 && is_chosen(waiter);
        left -= usize::from(chosen);
        chosen
    }));
    let start = new.len() - count;
    new[start..].iter().for_each(|waiter| *waiter.key.lock() = to);
    Ok((woken, count as u64))
}

/// Marks the robust futexes that the task holds as left by a dead owner, and wakes a waiter of each.
pub fn end_robust_list(task: &Task) {
    let head = task.robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    // A program that has damaged its list loses the rest of it.
    let _ = walk_robust_list(task, head);
}

fn walk_robust_list(task: &Task, head: u64) -> Result<(), Errno> {
    let memory = UserMemory::of(task.space());
    let word = |at: u64| memory.read_u64(VirtAddr(at));
    let (mut entry, offset, pending) = (word(head)?, word(head + 8)?, word(head + 16)?);
    for _ in 0..ROBUST_LIMIT {
        if entry == head || entry == 0 {
            break;
        }
        let next = word(entry & !1)?;
        if entry != pending {
            mark_dead(task, memory, (entry & !1).wrapping_add(offset), false)?;
        }
        entry = next;
    }
    if pending != 0 {
        mark_dead(task, memory, (pending & !1).wrapping_add(offset), true)?;
    }
    Ok(())
}

/// `is_pending`: the task was about to take the futex or to leave it. If it has no owner, the task may have left it and
/// not woken a waiter, or may be a waiter that was woken.
fn mark_dead(task: &Task, memory: UserMemory<'_>, at: u64, is_pending: bool) -> Result<(), Errno> {
    let is_owner = |value: u32| value & abi::FUTEX_TID_MASK == task.id();
    let dead = |value| is_owner(value).then_some(value & abi::FUTEX_WAITERS | abi::FUTEX_OWNER_DIED);
    let before = memory.update_u32(VirtAddr(at), dead)?;
    if is_owner(before) && before & abi::FUTEX_WAITERS != 0 || is_pending && before & abi::FUTEX_TID_MASK == 0
    {
        wake(task, VirtAddr(at), 1)?;
    }
    Ok(())
}
