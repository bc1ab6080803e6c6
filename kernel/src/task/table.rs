//! The numbers of tasks and processes.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use super::credentials::REAL;
use super::limits::UNLIMITED;
use super::process::Process;
use super::thread::Task;
use super::wait::WaitQueue;
use crate::errno::Errno;
use crate::observe::SETTINGS;
use crate::sync::Mutex;

/// The first process, whose end is the machine's.
pub const INIT: u32 = 1;

/// A number in use.
#[derive(Default)]
struct Entry {
    task: Weak<Task>,
    /// The process with this number, until its parent has waited for it.
    process: Option<Arc<Process>>,
    /// The real user, for the limit of tasks that a user may have.
    user: u32,
}

struct Table {
    entries: BTreeMap<u32, Entry>,
    last: u32,
}

/// Woken when a number is free again.
pub static RELEASED: WaitQueue = WaitQueue::new();

static TABLE: Mutex<Table> = Mutex::new(Table { entries: BTreeMap::new(), last: 0 });

impl Table {
    fn count_of(&self, user: u32) -> u64 {
        self.entries.values().filter(|entry| entry.user == user).count() as u64
    }
}

/// Takes the next free number for a user, which may have at most `most`.
///
/// # Errors
/// [`Errno::EAGAIN`] when none is free, or the user has as many.
pub fn take(user: u32, most: u64) -> Result<u32, Errno> {
    let mut table = TABLE.lock();
    if most != UNLIMITED && table.count_of(user) >= most {
        return Err(Errno::EAGAIN);
    }
    let end = SETTINGS.pid_max.load(Ordering::Relaxed) as u32;
    let numbers = (table.last + 1..end).chain(1..=table.last);
    let free = numbers.into_iter().find(|number| !table.entries.contains_key(number)).ok_or(Errno::EAGAIN)?;
    table.entries.insert(free, Entry { user, ..Entry::default() });
    table.last = free;
    Ok(free)
}

/// Publishes a task, and its process if it is the first task of it.
pub fn publish(task: &Arc<Task>) {
    let mut table = TABLE.lock();
    let entry = table.entries.entry(task.id()).or_default();
    entry.task = Arc::downgrade(task);
    // The process may have become another user since the number was taken.
    entry.user = task.process.credentials().users[REAL];
    if task.id() == task.process.id {
        entry.process = Some(task.process.clone());
    }
}

/// A process has another user: its numbers count for that one.
pub fn note_user(process: &Process) {
    let threads = process.threads.lock();
    let mut table = TABLE.lock();
    // Read under the table's lock: of two changes, the later one is noted last.
    let user = process.credentials().users[REAL];
    for id in threads.iter().map(|thread| thread.id()).chain([process.id]) {
        if let Some(entry) = table.entries.get_mut(&id) {
            entry.user = user;
        }
    }
}

/// How many numbers count for a user: those of its tasks, and of its processes that were not waited for.
pub fn count_of(user: u32) -> u64 {
    TABLE.lock().count_of(user)
}

/// Gives the only task of a process the process's number. The first task, which has ended, gets its number instead if
/// it is still referred to.
pub fn become_first(task: &Arc<Task>) {
    let (old, id) = (task.id(), task.process.id);
    if old == id {
        return;
    }
    let mut table = TABLE.lock();
    let entry = table.entries.entry(id).or_default();
    let first = core::mem::replace(&mut entry.task, Arc::downgrade(task)).upgrade();
    task.set_id(id);
    match &first {
        Some(first) => {
            first.set_id(old);
            table.entries.entry(old).or_default().task = Arc::downgrade(first);
        }
        None => _ = table.entries.remove(&old),
    }
    // The last reference gives the number back to this table.
    drop(table);
    drop(first);
    RELEASED.wake_all();
}

/// Gives back the number of a task that is gone, unless its process still has it.
pub fn release(id: u32) {
    let mut table = TABLE.lock();
    if table.entries.get(&id).is_some_and(|entry| entry.process.is_none()) {
        table.entries.remove(&id);
    }
    drop(table);
    RELEASED.wake_all();
}

/// Forgets a process that has ended and was waited for.
pub fn forget(process: &Process) {
    let mut table = TABLE.lock();
    let is_this = |other: &Arc<Process>| core::ptr::eq(&**other, process);
    let entry = table.entries.get_mut(&process.id);
    // It may have been forgotten before, and its number may belong to another process.
    let Some(entry) = entry.filter(|entry| entry.process.as_ref().is_some_and(is_this)) else { return };
    let gone = entry.process.take();
    if entry.task.strong_count() == 0 {
        table.entries.remove(&process.id);
    }
    // The last reference may free tasks, whose numbers go back to this table.
    drop(table);
    drop(gone);
    RELEASED.wake_all();
}

/// The task with this number.
pub fn task(id: u32) -> Option<Arc<Task>> {
    TABLE.lock().entries.get(&id)?.task.upgrade()
}

/// The process of the task with this number, or with this number itself: its first task may have ended.
pub fn process_of(id: u32) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    let entry = table.entries.get(&id)?;
    let Some(task) = entry.task.upgrade() else {
        return entry.process.clone().filter(|process| !process.has_ended());
    };
    drop(table);
    Some(task.process.clone())
}

/// The process with this number, which may have ended.
pub fn process(id: u32) -> Option<Arc<Process>> {
    TABLE.lock().entries.get(&id)?.process.clone()
}

/// Whether a process has its number still: it runs, or its parent has not waited for it.
pub fn is_known(process: &Arc<Process>) -> bool {
    self::process(process.id).is_some_and(|found| Arc::ptr_eq(&found, process))
}

/// All processes, by number. Needs no memory, and misses none that is there all the time.
pub fn processes() -> impl Iterator<Item = Arc<Process>> {
    let mut after = 0;
    core::iter::from_fn(move || {
        let table = TABLE.lock();
        let mut entries = table.entries.range(after + 1..);
        let (id, process) = entries.find_map(|(&id, entry)| Some((id, entry.process.clone()?)))?;
        after = id;
        Some(process)
    })
}

/// Whether no shell could continue a process's group after a stop: no member has a parent in the same session and another
/// group. The first process counts as a parent, which it does not in Linux: here it may be the shell.
pub fn is_orphaned(process: &Process) -> bool {
    let ids =
        |process: &Process| (process.session.load(Ordering::Relaxed), process.group.load(Ordering::Relaxed));
    let (session, group) = ids(process);
    let is_shell = |parent: Arc<Process>| {
        let (its_session, its_group) = ids(&parent);
        its_session == session && its_group != group
    };
    let has_shell = |member: &Process| !member.has_ended() && member.parent().is_some_and(is_shell);
    !processes().any(|member| ids(&member) == (session, group) && has_shell(&member))
}

/// How many tasks there are.
pub fn task_count() -> usize {
    TABLE.lock().entries.values().filter(|entry| entry.task.strong_count() > 0).count()
}

/// How many numbers are in use: at least as many as there are processes.
pub fn count() -> usize {
    TABLE.lock().entries.len()
}

/// The number that was given last.
pub fn last_id() -> u32 {
    TABLE.lock().last
}

/// Whether no process and no task has a number.
pub fn is_empty() -> bool {
    TABLE.lock().entries.is_empty()
}

/// Shows at most `most` tasks that do not run: the instruction at which each goes on, and its frame pointer. For a
/// panic, when no other CPU runs: shows none if the table's lock is held.
pub fn each_waiting(most: usize, mut show: impl FnMut(&Task, u64, u64)) {
    let Some(table) = TABLE.try_lock() else { return };
    for task in table.entries.values().filter_map(|entry| entry.task.upgrade()).take(most) {
        if let Some([rip, rbp]) = task.waits_at() {
            show(&task, rip, rbp);
        }
        // Freeing it takes locks.
        core::mem::forget(task);
    }
}
