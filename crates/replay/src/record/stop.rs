//! Stops the threads of a process for a moment, such that neither it nor its parent gets a signal.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use super::proc_files;
use super::traced::{self, Change};

/// How often a thread that has not stopped is looked at.
const LOOK: Duration = Duration::from_micros(50);

/// The threads of a process, stopped until this is dropped.
///
/// The calling thread traces them, and only its end lets go of those that did not stop in time. So it makes
/// this in a thread of its own.
pub(super) struct Stopped {
    /// With the signal at whose delivery it has stopped, or 0.
    threads: Vec<(Pid, i32)>,
    /// Threads that wait in the kernel and cannot stop: for a device, or for a child of `vfork`.
    pub(super) waiting: Vec<Pid>,
}

impl Stopped {
    /// Stops all threads, as far as they can stop until the deadline.
    pub(super) fn all_of(pid: Pid, deadline: Instant) -> Result<Stopped, Errno> {
        let mut stopped = Stopped { threads: Vec::new(), waiting: Vec::new() };
        let mut seen = BTreeSet::new();
        // A thread that still runs may start others.
        loop {
            let fresh: Vec<Pid> = threads_of(pid).into_iter().filter(|tid| seen.insert(*tid)).collect();
            if fresh.is_empty() {
                return Ok(stopped);
            }
            let mut asked = Vec::new();
            for tid in fresh {
                match ptrace::seize(tid, Options::empty()).and_then(|()| ptrace::interrupt(tid)) {
                    Ok(()) => asked.push(tid),
                    Err(Errno::ESRCH) => {}
                    Err(Errno::EPERM) if has_ended(pid, tid) => {}
                    Err(errno) => return Err(errno),
                }
            }
            asked.into_iter().for_each(|tid| stopped.wait_for(tid, deadline));
        }
    }

    /// Its threads, ascending.
    pub(super) fn threads(&self) -> Vec<u32> {
        let threads = self.threads.iter().map(|(tid, _)| tid).chain(&self.waiting);
        let threads: BTreeSet<u32> = threads.map(|tid| tid.as_raw() as u32).collect();
        threads.into_iter().collect()
    }

    fn wait_for(&mut self, tid: Pid, deadline: Instant) {
        loop {
            match traced::poll_one(tid) {
                Ok(Some(Change::Event { .. })) => return self.threads.push((tid, 0)),
                Ok(Some(Change::Signalled(_, signal))) => return self.threads.push((tid, signal)),
                Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
                Ok(None) => return self.waiting.push(tid),
                Err(Errno::EINTR) => {}
                // It has ended.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (tid, signal) in self.threads.drain(..) {
            // A thread that was killed meanwhile has ended.
            let _ = traced::detach(tid, signal);
        }
    }
}

fn threads_of(pid: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect()
}

/// Whether a thread is a zombie, as a first thread that ended before the others.
fn has_ended(pid: Pid, tid: Pid) -> bool {
    let stat = proc_files::text(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
