//! Which processes may use the terminal (`credentials(7)`, "Sessions").

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;

use super::TERMINAL;
use crate::errno::Errno;
use crate::task::credentials::Right;
use crate::task::process::Process;
use crate::task::signal::action::Effect;
use crate::task::signal::{send, set_of};
use crate::task::{sched, table};

/// Whether the terminal controls the session of a process.
pub fn controls(process: &Process) -> bool {
    TERMINAL.session.load(Ordering::Acquire) == process.session.load(Ordering::Relaxed)
}

/// Makes it the controlling terminal of the running process's session, if the process leads that and no other
/// session has it. `steal`: even then, with the right to.
pub fn become_controlling(steal: bool) -> Result<(), Errno> {
    let process = &sched::current().process;
    let session = process.session.load(Ordering::Relaxed);
    if controls(process) {
        return Ok(());
    }
    let may_steal = steal && process.has(Right::Administrate);
    if session != process.id || TERMINAL.session.load(Ordering::Acquire) != 0 && !may_steal {
        return Err(Errno::EPERM);
    }
    TERMINAL.session.store(session, Ordering::Release);
    TERMINAL.foreground.store(process.group.load(Ordering::Relaxed), Ordering::Release);
    Ok(())
}

/// Sends a signal to the processes in the foreground.
pub fn signal_foreground(signal: u32) {
    let group = TERMINAL.foreground.load(Ordering::Acquire);
    if group != 0 {
        send::to_group(group, signal);
    }
}

/// A process in the background must not read.
pub fn check_read() -> Result<(), Errno> {
    check(abi::SIGTTIN)
}

/// Nor write, where the terminal says so; nor change the terminal.
pub fn check_write(stops: bool) -> Result<(), Errno> {
    if stops { check_change() } else { Ok(()) }
}

/// Nor change the terminal.
pub fn check_change() -> Result<(), Errno> {
    check(abi::SIGTTOU)
}

/// Stops a process in the background. One that does not want the signal gets an error, or may change the terminal; one
/// that no shell could continue gets an error.
fn check(signal: u32) -> Result<(), Errno> {
    let task = sched::current();
    let process: &Arc<Process> = &task.process;
    let group = process.group.load(Ordering::Relaxed);
    let foreground = TERMINAL.foreground.load(Ordering::Acquire);
    if !controls(process) || foreground == 0 || group == foreground {
        return Ok(());
    }
    let blocked = task.signals.mask() & set_of(signal) != 0;
    if blocked || process.signals.action(signal).effect(signal) == Effect::Ignore {
        return if signal == abi::SIGTTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    if table::is_orphaned(process) {
        return Err(Errno::EIO);
    }
    send::to_group(group, signal);
    Err(Errno::EINTR)
}

/// Whether the running process's session has a process group with this number.
pub fn is_group_of_session(group: u32) -> bool {
    let session = sched::current().process.session.load(Ordering::Relaxed);
    table::processes().any(|process| {
        process.group.load(Ordering::Relaxed) == group && process.session.load(Ordering::Relaxed) == session
    })
}
