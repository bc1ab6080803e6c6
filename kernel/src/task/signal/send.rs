//! Sending signals.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;

use super::action::{Action, Effect};
use super::info::SigInfo;
use super::own::Own;
use super::{SignalSet, UNSTOPPABLE, set_of};
use crate::device::serial::log;
use crate::sync::Mutex;
use crate::task::coredump::{self, Outcome};
use crate::task::limits::UNLIMITED;
use crate::task::process::{Exit, JobEvent, Process};
use crate::task::thread::Task;
use crate::task::{sched, table, timers};

const STOPS: SignalSet =
    set_of(abi::SIGSTOP) | set_of(abi::SIGTSTP) | set_of(abi::SIGTTIN) | set_of(abi::SIGTTOU);

/// What has become of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It waits to be taken, or one like it did already.
    Queued,
    /// It was obeyed or ignored at once.
    Done,
    /// Too many wait: it is lost.
    Full,
}

/// Sends a signal to a process: a task that waits for it will take it, or one that does not block it.
pub fn to_process(process: &Arc<Process>, info: SigInfo) -> Sent {
    if is_handled_at_once(process, info) {
        return Sent::Done;
    }
    if process.signals.action(info.signal).effect(info.signal) == Effect::Ignore
        && takers(process, info.signal) == Takers::Open
    {
        return Sent::Done;
    }
    let most = most_pending(process);
    let is_kept = process.signals.pending.lock().add(info, most);
    // Asked only now: a task that unblocks the signal or waits for it later finds it pending.
    wake_takers(process, info.signal);
    if is_kept { Sent::Queued } else { Sent::Full }
}

/// Held while a signal is sent to several processes, and while the maker of a new one publishes it and looks whether it
/// has a signal to take. So a new process gets the signal, or its maker finds it.
pub static SEVERAL: Mutex<()> = Mutex::new(());

/// Sends a signal to each process for which the answer is yes.
pub fn to_each(info: Option<SigInfo>, mut gets: impl FnMut(&Process) -> bool) {
    let _several = SEVERAL.lock();
    for process in table::processes() {
        if gets(&process)
            && let Some(info) = info
        {
            to_process(&process, info);
        }
    }
}

/// Sends a signal of the kernel's to the processes of a group.
pub fn to_group(group: u32, signal: u32) {
    to_each(Some(SigInfo::kernel(signal)), |process| process.group.load(Ordering::Relaxed) == group);
}

/// A process group has lost its terminal or its shell: its processes end unless they handle that. Those that are stopped
/// go on. 0 is no group.
pub fn hang_up(group: u32) {
    if group != 0 {
        to_group(group, abi::SIGHUP);
        to_group(group, abi::SIGCONT);
    }
}

/// Which tasks of a process could take a signal now.
#[derive(PartialEq, Eq)]
enum Takers {
    /// None: all block it.
    None,
    /// Those that do not block it. None waits for it.
    Open,
    /// Those that wait for it.
    Waiting,
}

fn takers(process: &Process, signal: u32) -> Takers {
    let mut found = Takers::None;
    for thread in process.threads.lock().iter() {
        let (mask, awaited) = thread.signals.mask_and_awaited();
        if awaited & set_of(signal) != 0 {
            return Takers::Waiting;
        }
        if mask & set_of(signal) == 0 {
            found = Takers::Open;
        }
    }
    found
}

/// Changes what the running task blocks or waits for. It may have been the one that looks for a signal of its process,
/// which it can take no longer: another one looks then.
pub fn change(task: &Task, change: impl FnOnce(&mut Own)) {
    let mut own = task.signals.0.lock();
    let before = own.takes();
    change(&mut own);
    own.mask &= !UNSTOPPABLE;
    let lost = before & !own.takes();
    drop(own);
    if lost != 0 {
        hand_over(&task.process, lost);
    }
}

/// Lets tasks of a process look for those of these signals that it was sent.
pub fn hand_over(process: &Process, signals: SignalSet) {
    let mut left = process.signals.pending.lock().set() & signals;
    while left != 0 {
        wake_takers(process, left.trailing_zeros() + 1);
        left &= left - 1;
    }
}

/// Wakes the tasks that wait for a signal. Without any, wakes the first one that does not block it. One that ends takes
/// none.
fn wake_takers(process: &Process, signal: u32) {
    let threads = process.threads.lock();
    let mut open = None;
    let mut waits = false;
    for thread in threads.iter().filter(|thread| !thread.is_dying()) {
        let (mask, awaited) = thread.signals.mask_and_awaited();
        if awaited & set_of(signal) != 0 {
            thread.signal_arrived();
            waits = true;
        } else if mask & set_of(signal) == 0 && open.is_none() {
            open = Some(thread);
        }
    }
    if let (false, Some(thread)) = (waits, open) {
        thread.signal_arrived();
    }
}

/// Sends a signal to one task.
pub fn to_task(task: &Arc<Task>, info: SigInfo) -> Sent {
    if is_handled_at_once(&task.process, info) {
        return Sent::Done;
    }
    let (mask, awaited) = task.signals.mask_and_awaited();
    let keeps = (mask | awaited) & set_of(info.signal) != 0;
    if !keeps && task.process.signals.action(info.signal).effect(info.signal) == Effect::Ignore {
        return Sent::Done;
    }
    let most = most_pending(&task.process);
    let is_kept = task.signals.0.lock().pending.add(info, most);
    task.signal_arrived();
    if is_kept { Sent::Queued } else { Sent::Full }
}

/// Sends the running task a signal that it must take: one that it blocks or ignores ends it.
pub fn force(task: &Task, info: SigInfo) {
    let bit = set_of(info.signal);
    let action = task.process.signals.action(info.signal);
    let blocked = task.signals.mask() & bit != 0;
    if blocked || action.effect(info.signal) == Effect::Ignore {
        task.process.signals.set_action(info.signal, Action::default());
        task.signals.0.lock().mask &= !bit;
    }
    if info.signal == abi::SIGKILL {
        task.process.begin_exit(Exit::Killed(abi::SIGKILL));
        return;
    }
    task.signals.0.lock().pending.add(info, UNLIMITED);
    task.set_signal_flag();
}

/// What does not wait for a task to take it: `SIGKILL`, and the ends of stops.
fn is_handled_at_once(process: &Arc<Process>, info: SigInfo) -> bool {
    if process.id == 0 || process.exit().is_some() {
        return true;
    }
    if info.signal == abi::SIGKILL {
        process.begin_exit(Exit::Killed(abi::SIGKILL));
        return true;
    }
    if info.signal == abi::SIGCONT {
        discard(process, STOPS);
        resume(process);
    } else if set_of(info.signal) & STOPS != 0 {
        discard(process, set_of(abi::SIGCONT));
    }
    false
}

/// How many signals may wait for a process, or for one of its tasks.
fn most_pending(process: &Process) -> u64 {
    process.limits.get(abi::RLIMIT_SIGPENDING).map_or(0, |limit| limit.soft)
}

/// Forgets signals that wait for a process or its tasks.
pub fn discard(process: &Process, set: SignalSet) {
    process.signals.pending.lock().remove(set);
    for thread in process.threads.lock().iter() {
        thread.signals.0.lock().pending.remove(set);
    }
    timers::discarded(process, set);
}

/// Stops a process; its tasks notice on their way to their program. `continuations` is how often it had been continued
/// when the signal was taken: one that came later has ended the stop before it began.
pub fn stop(process: &Arc<Process>, signal: u32, continuations: u64) {
    let mut event = process.job_event.lock();
    let is_over = process.continuations.load(Ordering::Relaxed) != continuations;
    if is_over || process.stopped.swap(true, Ordering::AcqRel) {
        return;
    }
    *event = Some(JobEvent::Stopped(signal));
    drop(event);
    tell_parent(process, abi::CLD_STOPPED, signal);
    for thread in process.threads.lock().iter() {
        thread.signal_arrived();
    }
}

/// Lets a process continue. No stop waits for it any more; one that was taken before finds that it is over.
fn resume(process: &Arc<Process>) {
    let mut event = process.job_event.lock();
    process.continuations.fetch_add(1, Ordering::Relaxed);
    if !process.stopped.swap(false, Ordering::AcqRel) {
        return;
    }
    *event = Some(JobEvent::Continued);
    drop(event);
    process.continued.wake_all();
    tell_parent(process, abi::CLD_CONTINUED, abi::SIGCONT);
}

fn tell_parent(process: &Process, code: u32, signal: u32) {
    let Some(parent) = process.parent() else { return };
    if !parent.signals.action(abi::SIGCHLD).has(abi::SA_NOCLDSTOP) {
        to_process(&parent, SigInfo::job(process, code, signal));
    }
    parent.child_events.wake_all();
}

/// Ends the running task's process by a signal that it does not handle.
pub fn terminate(task: &Task, info: SigInfo) {
    if set_of(info.signal) & (super::SYNCHRONOUS | UNSTOPPABLE) != 0 {
        // SAFETY: X3: the task is the running one, and its program does not run.
        let registers = &unsafe { task.user() }.registers;
        log!(
            "process {} is killed by signal {}, address {:#x}\n{registers}",
            task.process.id,
            info.signal,
            info.words[0]
        );
    }
    match coredump::dump(task, &info) {
        Outcome::None => task.process.begin_exit(Exit::Killed(info.signal)),
        Outcome::Written => task.process.begin_exit(Exit::Dumped(info.signal)),
        // How the process ends is said by the task that writes it.
        Outcome::ByAnother => sched::current().kill(),
    }
}
