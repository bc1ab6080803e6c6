//! What a recording attaches to: a process, or the processes of a control group.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::libc;
use nix::unistd::Pid;
use procfs::process::{Process, Stat};
use rustix::fs::{Mode, OFlags};

use super::{RecordError, proc_files};
use crate::output::quoted;

/// What to attach to.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A process, with the children that it starts.
    Process(i32),
    /// The processes of a control group and those below it, with all that join.
    Cgroup(PathBuf),
}

/// What was found of it.
pub(super) enum Found {
    Process(OwnedFd),
    Cgroup(OwnedFd),
}

/// Processes of a control group that the recording knows.
#[derive(Default)]
pub(super) struct Members {
    /// Since when, in ticks of the system's clock.
    known: HashMap<i32, u64>,
}

impl Subject {
    /// Opens it.
    pub(super) fn find(&self) -> Result<Found, RecordError> {
        match self {
            Subject::Process(pid) => {
                check(*pid)?;
                let ended = RecordError::Ended { pid: *pid };
                let pid = rustix::process::Pid::from_raw(*pid).ok_or(RecordError::NoProcess { pid: *pid })?;
                let flags = rustix::process::PidfdFlags::empty();
                rustix::process::pidfd_open(pid, flags).map(Found::Process).map_err(|_| ended)
            }
            Subject::Cgroup(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let no_group = |source| RecordError::NoCgroup { path: quoted(path).to_string(), source };
                fs::metadata(path.join("cgroup.procs")).map_err(no_group)?;
                let opened = rustix::fs::open(path, flags, Mode::empty());
                opened.map(Found::Cgroup).map_err(|errno| no_group(errno.into()))
            }
        }
    }

    /// Its command line, and a name for it.
    pub(super) fn command(&self) -> (Vec<String>, String) {
        match self {
            Subject::Process(pid) => {
                let stat = Process::new(*pid).and_then(|process| process.stat());
                let name = stat.map(|stat| stat.comm).unwrap_or_default();
                let line = proc_files::text(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let command: Vec<String> =
                    line.split('\0').filter(|it| !it.is_empty()).map(str::to_owned).collect();
                (if command.is_empty() { vec![name.clone()] } else { command }, name)
            }
            Subject::Cgroup(path) => {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                (vec![path.to_string_lossy().into_owned()], name)
            }
        }
    }

    /// The processes that are there now.
    pub(super) fn processes(&self) -> Vec<i32> {
        match self {
            Subject::Process(pid) => vec![*pid],
            Subject::Cgroup(path) => members(path),
        }
    }
}

/// Whether a process can be attached to.
fn check(pid: i32) -> Result<(), RecordError> {
    const KERNEL_THREAD: u32 = 0x20_0000;
    let process = Process::new(pid).map_err(|_| RecordError::NoProcess { pid })?;
    let status = proc_files::status(pid).map_err(|source| gone(pid, source))?;
    let stat = process.stat().map_err(|_| RecordError::Ended { pid })?;
    if status.tgid != pid {
        return Err(RecordError::Thread { tid: pid, pid: status.tgid });
    }
    if pid == Pid::this().as_raw() {
        return Err(RecordError::Myself);
    }
    if stat.flags & KERNEL_THREAD != 0 {
        return Err(RecordError::KernelThread { pid });
    }
    if has_ended(&stat) {
        return Err(RecordError::Ended { pid });
    }
    not_traced(pid)
}

/// Why a process cannot be read.
pub(super) fn gone(pid: i32, source: io::Error) -> RecordError {
    match source.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => RecordError::Ended { pid },
        _ => RecordError::NotStopped { pid, source },
    }
}

/// A first thread that has ended stays until the other threads have ended.
fn has_ended(stat: &Stat) -> bool {
    stat.state == 'Z' && stat.num_threads <= 1
}

/// A thread has one tracer at most.
pub(super) fn not_traced(pid: i32) -> Result<(), RecordError> {
    match proc_files::status(pid) {
        Ok(status) if status.tracerpid != 0 => Err(RecordError::Traced { pid, by: status.tracerpid }),
        _ => Ok(()),
    }
}

fn members(group: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = listed.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(members(&entry.path()));
        }
    }
    // Processes of a container of another PID namespace are listed as 0.
    found.retain(|pid| *pid > 0 && *pid != Pid::this().as_raw());
    found
}

impl Members {
    /// Whether the recording must look at this process. It need not if a known process has started it since it
    /// is known: then the kernel has reported that.
    pub(super) fn is_unknown(&mut self, pid: i32) -> bool {
        let Ok(stat) = Process::new(pid).and_then(|process| process.stat()) else { return false };
        if self.known.get(&pid).is_some_and(|since| stat.starttime <= *since) {
            return false;
        }
        let is_told = self.known.get(&stat.ppid).is_some_and(|since| stat.starttime > *since);
        if is_told {
            self.known.insert(pid, stat.starttime);
        }
        !is_told && !has_ended(&stat)
    }

    /// The recording has looked at this process.
    pub(super) fn know(&mut self, pid: i32) {
        let ticks = super::raw::now_ns() / (1_000_000_000 / procfs::ticks_per_second());
        self.known.insert(pid, ticks);
    }
}
