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
    let mut living = Living::default();
    loop {
        let change = match traced::wait() {
            Ok(change) => change,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(exits),
            Err(errno) => return Err(errno),
        };
        if let Some(exit_code) = change.exit_code() {
            living.reaped(change.tid());
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

/// Processes that have not ended.
#[derive(Default)]
struct Living {
    /// Of each the place among all processes, and how many of its threads are at their end and not reaped.
    processes: HashMap<Pid, (usize, u64)>,
    /// The process of each of these threads.
    ending: HashMap<Pid, Pid>,
}

impl Living {
    /// Whether the last of a process's `threads` is at its end now. The kernel counts those that are not reaped yet.
    fn is_last(&mut self, tid: Pid, process: Pid, threads: u64) -> bool {
        let Some((_, ending)) = self.processes.get_mut(&process) else { return true };
        *ending += u64::from(self.ending.insert(tid, process).is_none());
        threads <= *ending
    }

    /// A thread is reaped; with its first thread, the process.
    fn reaped(&mut self, tid: Pid) {
        self.processes.remove(&tid);
        let process = self.ending.remove(&tid);
        if let Some((_, ending)) = process.and_then(|process| self.processes.get_mut(&process)) {
            *ending -= 1;
        }
    }

    /// A thread has started a program: the kernel has ended all others of its process, and it has the first one's number.
    fn alone(&mut self, process: Pid) {
        self.ending.retain(|_, of| *of != process);
        if let Some((_, ending)) = self.processes.get_mut(&process) {
            *ending = 0;
        }
    }
}

impl Exits {
    /// Looks at a thread that has stopped at an event.
    fn look(&mut self, tid: Pid, event: i32, living: &mut Living, looks_at_huge: bool) {
        // A process that is gone has nothing to look at.
        let Ok(status) = proc_files::status(tid.as_raw()) else { return };
        // A new process stops before its first instruction: then it is seen here, whichever event is reported first.
        let number = Pid::from_raw(status.tgid);
        let (place, _) = *living.processes.entry(number).or_insert_with(|| {
            self.processes.push(ProcessPeak {
                program: status.name.clone(),
                peak_rss_bytes: 0,
                huge_bytes: None,
            });
            (self.processes.len() - 1, 0)
        });
        let process = &mut self.processes[place];
        match event {
            libc::PTRACE_EVENT_EXEC => {
                process.program = status.name;
                living.alone(number);
            }
            // The peak of an address space begins anew with a program. The last thread to end has seen most.
            libc::PTRACE_EVENT_EXIT => {
                process.peak_rss_bytes = status.vmhwm.unwrap_or(0) * 1024;
                // The kernel walks the page tables for it: not at the end of each of many threads. A first thread
                // that ends before the others may be followed by none that is seen to be the last: a kill may come
                // between.
                let is_last = living.is_last(tid, number, status.threads);
                if looks_at_huge && (is_last || tid == number) {
                    process.huge_bytes = proc_files::huge_bytes(tid.as_raw());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads stop at their ends before one of them is reaped, and the first one has ended long ago: the kernel counts
    /// three at both. The memory at the end was that at the end of the first thread.
    #[test]
    fn the_last_thread_is_known_however_late_the_others_are_reaped() {
        let [first, second, third] = [10, 11, 12].map(Pid::from_raw);
        let mut living = Living::default();
        living.processes.insert(first, (0, 0));
        assert!(!living.is_last(first, first, 3));
        assert!(!living.is_last(second, first, 3));
        assert!(living.is_last(third, first, 3));
        // The same where the second is reaped in between.
        living = Living::default();
        living.processes.insert(first, (0, 0));
        assert!(!living.is_last(first, first, 3) && !living.is_last(second, first, 3));
        living.reaped(second);
        assert!(living.is_last(third, first, 2));
        [third, first].into_iter().for_each(|tid| living.reaped(tid));
        assert!(living.processes.is_empty() && living.ending.is_empty());
        // The second thread starts a program: it is the first one then, and has ended nothing.
        living.processes.insert(first, (0, 0));
        assert!(!living.is_last(first, first, 2));
        living.alone(first);
        assert!(!living.is_last(third, first, 2) && living.is_last(first, first, 2));
    }
}
