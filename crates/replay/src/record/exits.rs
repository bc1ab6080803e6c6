//! Follows a program by stopping each of its threads at its end, where the memory of its process is still there.

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use super::proc_files;
use super::traced::{self, Change};

/// A program that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exits {
    pub(super) exit_code: u8,
    /// The largest resident memory that any one process had.
    pub(super) peak_rss_bytes: u64,
}

/// Traces a process that waits at its gate, and all its descendants.
pub(super) fn attach(pid: Pid) -> nix::Result<()> {
    let options = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options)
}

/// Runs until the program and all its descendants have ended.
pub(super) fn follow(program: Pid) -> nix::Result<Exits> {
    let mut exits = Exits::default();
    loop {
        let change = match traced::wait() {
            Ok(change) => change,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(exits),
            Err(errno) => return Err(errno),
        };
        if let Some(exit_code) = change.exit_code() {
            if change.tid() == program {
                exits.exit_code = exit_code;
            }
            continue;
        }
        let resumed = match change {
            Change::Event { tid, .. } if change.is_group_stop() => traced::listen(tid),
            Change::Event { tid, event, .. } => {
                if event == libc::PTRACE_EVENT_EXIT {
                    exits.peak_rss_bytes = exits.peak_rss_bytes.max(peak_rss_bytes(tid));
                }
                traced::cont(tid, 0)
            }
            Change::Signalled(tid, signal) => traced::cont(tid, signal),
            _ => Ok(()),
        };
        match resumed {
            // A thread that was killed while it was stopped is reported next.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The peak since the last exec. A process that is gone has none.
fn peak_rss_bytes(tid: Pid) -> u64 {
    let status = proc_files::status(tid.as_raw());
    status.ok().and_then(|status| status.vmhwm).unwrap_or(0) * 1024
}
