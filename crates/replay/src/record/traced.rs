//! Waits for children, and restarts stopped threads with the signals that they stopped for.
//!
//! `nix` has these calls too, but reports an error for a real-time signal: its `Signal` ends at 31.

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

/// A change of a child or of a traced thread. A signal is a number here, as only that names them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It ended with this exit code.
    Exited(Pid, i32),
    /// This signal ended it.
    Killed(Pid, i32),
    /// It stopped before this signal is delivered.
    Signalled(Pid, i32),
    /// It stopped at the entry or the exit of a system call.
    AtCall(Pid),
    /// It stopped at an event of ptrace. The signal matters for `PTRACE_EVENT_STOP` only.
    Event { tid: Pid, signal: i32, event: i32 },
}

impl Change {
    fn new(tid: Pid, status: WaitStatus) -> Option<Change> {
        if let Some(code) = status.exit_status() {
            return Some(Change::Exited(tid, code));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Change::Killed(tid, signal));
        }
        let signal = status.stopping_signal()?;
        Some(match status.as_raw() >> 16 {
            // `PTRACE_O_TRACESYSGOOD` sets this bit.
            0 if signal == libc::SIGTRAP | 0x80 => Change::AtCall(tid),
            0 => Change::Signalled(tid, signal),
            event => Change::Event { tid, signal, event },
        })
    }

    pub(super) const fn tid(self) -> Pid {
        match self {
            Change::Exited(tid, _)
            | Change::Killed(tid, _)
            | Change::Signalled(tid, _)
            | Change::AtCall(tid)
            | Change::Event { tid, .. } => tid,
        }
    }

    /// The exit code of an end, as a shell reports it.
    pub(super) const fn exit_code(self) -> Option<u8> {
        match self {
            Change::Exited(_, code) => Some(code as u8),
            Change::Killed(_, signal) => Some(128 + signal as u8),
            _ => None,
        }
    }

    /// Whether a stop signal stopped the whole process (Ctrl-Z, say), until it is continued.
    pub(super) const fn is_group_stop(self) -> bool {
        let Change::Event { signal, event: libc::PTRACE_EVENT_STOP, .. } = self else { return false };
        matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
    }
}

/// Threads count as children too.
const ALL: WaitOptions = WaitOptions::from_bits_retain(libc::__WALL as u32);

/// Waits for the next change of any child or traced thread.
pub(super) fn wait() -> Result<Change, Errno> {
    loop {
        let changed = rustix::process::wait(ALL).map_err(known_errno)?;
        if let Some(change) = changed.and_then(known) {
            return Ok(change);
        }
    }
}

/// The next change, if there is one now.
pub(super) fn poll() -> Result<Option<Change>, Errno> {
    let changed = rustix::process::wait(ALL.union(WaitOptions::NOHANG)).map_err(known_errno)?;
    Ok(changed.and_then(known))
}

/// The next change of one child or thread, if there is one now.
pub(super) fn poll_one(tid: Pid) -> Result<Option<Change>, Errno> {
    let tid = rustix::process::Pid::from_raw(tid.as_raw()).ok_or(Errno::ECHILD)?;
    let changed = rustix::process::waitpid(Some(tid), ALL.union(WaitOptions::NOHANG)).map_err(known_errno)?;
    Ok(changed.and_then(known))
}

/// A child that has ended and stays a zombie until [`poll_one`] takes it.
pub(super) fn zombie() -> Result<Option<Pid>, Errno> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: C3: all zeroes are a value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: C3: the kernel writes to the structure, which outlives the call.
    let outcome = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) };
    Errno::result(outcome)?;
    // SAFETY: C3: the kernel has filled in this member of the union, or left it zero.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some(Pid::from_raw(pid)))
}

fn known((tid, status): (rustix::process::Pid, WaitStatus)) -> Option<Change> {
    Change::new(Pid::from_raw(tid.as_raw_nonzero().get()), status)
}

fn known_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Lets a stopped thread run; 0 delivers no signal.
pub(super) fn cont(tid: Pid, signal: i32) -> Result<(), Errno> {
    restart(libc::PTRACE_CONT, tid, signal)
}

/// Lets a stopped thread run to the entry or exit of its next system call.
pub(super) fn run_to_call(tid: Pid, signal: i32) -> Result<(), Errno> {
    restart(libc::PTRACE_SYSCALL, tid, signal)
}

/// Leaves a process stopped that was stopped on purpose (by Ctrl-Z, say), until it is continued.
pub(super) fn listen(tid: Pid) -> Result<(), Errno> {
    restart(libc::PTRACE_LISTEN, tid, 0)
}

/// Lets a stopped thread run, and traces it no more.
pub(super) fn detach(tid: Pid, signal: i32) -> Result<(), Errno> {
    restart(libc::PTRACE_DETACH, tid, signal)
}

fn restart(request: libc::c_uint, tid: Pid, signal: i32) -> Result<(), Errno> {
    // SAFETY: C3: the kernel checks that the calling thread traces this one, and the request takes no memory.
    let outcome = unsafe { libc::ptrace(request, tid.as_raw(), 0, libc::c_long::from(signal)) };
    Errno::result(outcome).map(drop)
}
