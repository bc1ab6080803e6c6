//! The end of a task, and of a process with its last one.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::process::{Exit, Process};
use super::signal::{self, SignalSet, action::Effect, info::SigInfo};
use super::thread::Task;
use super::{futex, owned_futex, sched, table, timers};
use crate::device::serial::log;
use crate::files::tty;
use crate::ipc;
use crate::memory::list::ReservedList;
use crate::memory::user::UserMemory;
use crate::observe::program_ends;
use crate::time;

/// How long a broken address space is looked at again, in nanoseconds. The host may not run another CPU for a while.
const CHECKED_FOR: u64 = 20_000_000_000;

/// What the running task does last, on its way to `sched::end_task`.
pub fn finish() {
    let task = sched::current();
    leave_program(&task);
    owned_futex::set_gone(&task);
    let is_last = {
        let mut threads = task.process.threads.lock();
        threads.retain(|thread| !Arc::ptr_eq(thread, &task));
        threads.is_empty()
    };
    // Others take what it was to take of its process's signals.
    signal::send::hand_over(&task.process, SignalSet::MAX);
    if is_last {
        let space = task.process.space.lock().take();
        check(&task);
        task.process.account.note_end(task.space());
        drop(space);
    }
    task.leave_space();
    ipc::collect();
    if is_last {
        end_process(&task.process);
    }
    task.process.child_events.wake_all();
}

/// What the running task does last in a program's memory: it tells those that wait for futexes which it holds, and for
/// its end.
pub fn leave_program(task: &Task) {
    owned_futex::end(task);
    futex::end_robust_list(task);
    clear_child_id(task);
}

/// The end of a first task whose program could not be loaded.
pub fn abandon() {
    let task = sched::current();
    task.process.threads.lock().retain(|_| false);
    table::forget(&task.process);
}

/// Takes back a new process that has not run: it is no child and has no number any more.
pub fn take_back(task: Arc<Task>) {
    let process = task.process.clone();
    process.threads.lock().retain(|_| false);
    // As at the end of a process: whichever reference to it is the last one, there is not much to free.
    free_files(&process);
    let space = process.space.lock().take();
    // No signal: there was no child.
    if let Some(parent) = process.parent() {
        remove_child(&parent, &process);
    }
    table::forget(&process);
    drop((task, space));
    ipc::collect();
}

/// In builds with checks, the address space is validated before it goes. Other CPUs may be about to reclaim pages of it,
/// between an entry and its count, and other processes that share it may be in a fault, between an old page and a new
/// one. So what is wrong must stay wrong.
fn check(task: &Task) {
    if !cfg!(debug_assertions) {
        return;
    }
    let end = time::now_ns() + CHECKED_FOR;
    while let Err(found) = task.space().validate() {
        assert!(
            time::now_ns() < end,
            "the address space of process {} is broken: {found:?}",
            task.process.id
        );
        sched::schedule();
    }
}

/// The references to an address space of one task: the task's, the process's, and that of the code which counts.
const ALONE: usize = 3;

/// `set_tid_address(2)`: a thread that joins this one waits for the zero. Without another task in the memory none waits.
fn clear_child_id(task: &Task) {
    let at = task.clear_child_tid.swap(0, Ordering::Relaxed);
    if at == 0 || task.space_handle().is_none_or(|space| Arc::strong_count(&space) <= ALONE) {
        return;
    }
    let memory = UserMemory::of(task.space());
    if memory.write(VirtAddr(at), &0_u32.to_le_bytes()).is_ok() {
        let _ = futex::wake(task, VirtAddr(at), 1);
    }
}

/// Frees what the process had, and tells its parent.
fn end_process(process: &Arc<Process>) {
    program_ends(process);
    free_files(process);
    timers::delete_all(process.id, true);
    end_vfork(process);
    // With the first process the machine's work ends, and all others with it.
    if process.id == process.session.load(Ordering::Relaxed) && process.id != table::INIT {
        tty::session_ended(process.id);
    }
    // Before it has ended: a parent that waits does not find a child that leaves nothing to wait for.
    let parent = process.parent().filter(|parent| wants_no_zombies(parent, process));
    if let Some(parent) = &parent {
        remove_child(parent, process);
    }
    process.set_ended();
    give_children_to_init(process);
    if let Some(parent) = process.parent() {
        parent_is_lost(process, &parent);
    }
    if parent.is_some() { reap_unseen(process) } else { tell_end(process) }
}

/// Tells the parent that a process has ended. Without a parent that wants to know, the process is forgotten.
fn tell_end(process: &Arc<Process>) {
    let parent = process.parent();
    match &parent {
        Some(parent) if !wants_no_zombies(parent, process) => {
            notify_parent(parent, process);
        }
        _ if process.id == table::INIT => crate::init::init_ended(),
        _ => reap_unseen(process),
    }
}

fn free_files(process: &Process) {
    let files = core::mem::take(&mut *process.files.lock());
    let fs = process.fs.lock().take();
    let claim = process.identity.lock().claim.take();
    drop((files, fs, claim));
}

/// Lets the parent of a `vfork` go on: the child does not use its address space any more.
pub fn end_vfork(process: &Process) {
    if process.is_vforked.swap(false, Ordering::AcqRel) {
        process.vfork_done.wake_all();
    }
}

/// The first process waits for the children of a process that has ended. Its own are waited for by none.
fn give_children_to_init(process: &Arc<Process>) {
    let heir = table::process(table::INIT).filter(|init| !Arc::ptr_eq(init, process));
    process.children.lock().reverse();
    loop {
        // One at a time: a sibling may have reserved a place here (`CLONE_PARENT`), so the list keeps its memory.
        let Some(orphan) = process.children.lock().pop() else { break };
        match &heir {
            Some(init) => {
                // It may have been made to send any signal at its end.
                orphan.exit_signal.store(abi::SIGCHLD, Ordering::Relaxed);
                // Its place was reserved when it was made.
                adopt(init, &orphan, ReservedList::push_within);
                parent_is_lost(&orphan, process);
                let signal = orphan.account.death_signal.load(Ordering::Relaxed);
                if signal != 0 {
                    signal::send::to_process(&orphan, SigInfo::user(signal, process));
                }
            }
            None => abandon_child(&orphan),
        }
    }
}

/// A process has ended, or its parent has. If the parent was the last one that could continue the process's group, and a
/// member of that is stopped, the group is hung up (`_exit(2)`).
fn parent_is_lost(process: &Process, parent: &Process) {
    let ids =
        |process: &Process| (process.session.load(Ordering::Relaxed), process.group.load(Ordering::Relaxed));
    let (session, group) = ids(process);
    let (its_session, its_group) = ids(parent);
    let is_stopped = |member: Arc<Process>| member.stopped.load(Ordering::Relaxed) && ids(&member).1 == group;
    let could_continue = its_session == session && its_group != group;
    if could_continue && table::processes().any(is_stopped) && table::is_orphaned(process) {
        signal::send::hang_up(group);
    }
}

/// Makes a process the parent of another one, unless it has ended. A child that has ended is announced to the new
/// parent. `push` adds the child to the list, which has a place for it.
pub fn adopt(
    parent: &Arc<Process>,
    child: &Arc<Process>,
    push: fn(&mut ReservedList<Arc<Process>>, Arc<Process>),
) {
    *child.parent.lock() = Arc::downgrade(parent);
    push(&mut parent.children.lock(), child.clone());
    if parent.has_ended() {
        // Its own end may have come before, and missed the new child.
        remove_child(parent, child);
        abandon_child(child);
    } else if child.has_ended() {
        // The child sets its end before it asks for its parent, so one of the two tells the new one.
        tell_end(child);
    } else {
        parent.child_events.wake_all();
    }
}

/// A process without a parent is forgotten at its end: by itself, or here if it has ended already. It sets its end
/// before it asks for its parent, and here it is the other way round, so one of the two sees the other.
fn abandon_child(child: &Process) {
    *child.parent.lock() = Weak::new();
    if child.has_ended() {
        table::forget(child);
    }
}

fn notify_parent(parent: &Arc<Process>, process: &Process) {
    let exit = process.exit().unwrap_or(Exit::Exited(0));
    let signal = process.exit_signal.load(Ordering::Relaxed);
    // `clone(2)` takes any number.
    if (1..=signal::COUNT).contains(&signal) {
        signal::send::to_process(parent, SigInfo::child(signal, process, exit));
    }
    parent.child_events.wake_all();
}

/// A parent that ignores `SIGCHLD` gets no zombies.
fn wants_no_zombies(parent: &Process, process: &Process) -> bool {
    process.exit_signal.load(Ordering::Relaxed) == abi::SIGCHLD && parent.signals.reaps_children()
}

fn remove_child(parent: &Process, child: &Arc<Process>) {
    parent.children.lock().retain(|other| !Arc::ptr_eq(other, child));
}

fn reap_unseen(process: &Arc<Process>) {
    if let Some(parent) = process.parent() {
        remove_child(&parent, process);
        // With `SA_NOCLDWAIT` a handler runs all the same.
        if parent.signals.action(abi::SIGCHLD).effect(abi::SIGCHLD) == Effect::Handle {
            notify_parent(&parent, process);
        }
        parent.child_events.wake_all();
    }
    table::forget(process);
}

/// Kills all processes but `init`, at the end of the machine's work.
pub fn kill_all() {
    for process in table::processes() {
        if process.exit().is_none() {
            log!("process {} is still running and is killed", process.id);
        }
        process.begin_exit(Exit::Killed(abi::SIGKILL));
    }
}
