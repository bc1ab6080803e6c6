//! Follows a program by stopping each of its threads at its end, where the memory of its process is still there.

use std::collections::HashMap;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use super::proc_files;
use super::traced::{self, Change};

/// A program that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Exits {
    pub(super) exit_code: u8,
    /// Every process, in the order in which they were started.
    pub(super) processes: Vec<ProcessPeak>,
}

/// The memory of one process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessPeak {
    /// The kernel's name of the last program that it started: 15 bytes of the file's name. A process that started none has
    /// that of its parent.
    pub program: String,
    /// The most resident memory that it had since it started this program.
    pub peak_rss_bytes: u64,
    /// Anonymous memory that leaves of 2 MiB map at its end, if that was looked at.
    #[serde(default)]
    pub huge_bytes: Option<u64>,
}

/// Traces a process that waits at its gate, and all its descendants.
pub(super) fn attach(pid: Pid) -> nix::Result<()> {
    let options = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options)
}

/// Runs until the program and all its descendants have ended.
pub(super) fn follow(program: Pid, looks_at_huge: bool) -> nix::Result<Exits> {
    let mut exits = Exits::default();
    let mut living = HashMap::new();
    loop {
        let change = match traced::wait() {
            Ok(change) => change,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(exits),
            Err(errno) => return Err(errno),
        };
        if let Some(exit_code) = change.exit_code() {
            living.remove(&change.tid());
            if change.tid() == program {
                exits.exit_code = exit_code;
            }
            continue;
        }
        let resumed = match change {
            Change::Event { tid, .. } if change.is_group_stop() => traced::listen(tid),
            Change::Event { tid, event, .. } => {
                exits.look(tid, event, &mut living, looks_at_huge);
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

impl Exits {
    /// Looks at a thread that has stopped at an event. `living` has the places of processes that have not ended.
    fn look(&mut self, tid: Pid, event: i32, living: &mut HashMap<Pid, usize>, looks_at_huge: bool) {
        // A process that is gone has nothing to look at.
        let Ok(status) = proc_files::status(tid.as_raw()) else { return };
        // A new process stops before its first instruction: then it is seen here, whichever event is reported first.
        let place = *living.entry(Pid::from_raw(status.tgid)).or_insert_with(|| {
            self.processes.push(ProcessPeak {
                program: status.name.clone(),
                peak_rss_bytes: 0,
                huge_bytes: None,
            });
            self.processes.len() - 1
        });
        let process = &mut self.processes[place];
        match event {
            libc::PTRACE_EVENT_EXEC => process.program = status.name,
            // The peak of an address space begins anew with a program. The last thread to end has seen most.
            libc::PTRACE_EVENT_EXIT => {
                process.peak_rss_bytes = status.vmhwm.unwrap_or(0) * 1024;
                // The kernel walks the page tables for it: not at the end of each of many threads. Where the first
                // one has ended before the others, it is still counted.
                if looks_at_huge && (tid.as_raw() == status.tgid || status.threads <= 2) {
                    process.huge_bytes = proc_files::huge_bytes(tid.as_raw());
                }
            }
            _ => {}
        }
    }
}
