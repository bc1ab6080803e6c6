//! Errors of a recording; each is one line that names the cure.

use std::io;

use crate::trace::{Tier, TraceError};

/// Why a program can't be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The program could not be started.
    #[error("cannot start {program}: {source}; check its name, its permissions and PATH")]
    CannotStart {
        /// What was to be started.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The trace cannot be written; the program was not started.
    #[error("cannot write {path}: {source}")]
    Output {
        /// Where to.
        path: String,
        /// Why.
        source: TraceError,
    },
    /// The program ran, but its trace could not be written.
    #[error("cannot write {path}, the program ended with status {program_exit_code}: {source}")]
    NotKept {
        /// Where to.
        path: String,
        /// Why.
        source: TraceError,
        /// How the program ended, as a shell says it.
        program_exit_code: u8,
    },
    /// Standard output is a terminal.
    #[error("a trace is binary and is not written to a terminal; give a file, or redirect standard output")]
    Terminal,
    /// Two things cannot both have standard output.
    #[error("standard output takes the trace or the summary as JSON; give `-o` a file")]
    OutputTaken,
    /// The kernel does not let this user see faults.
    #[error(
        "the kernel refuses to report {what} ({source}); {}, or set `sysctl kernel.perf_event_paranoid=2` \
         for what an ordinary user may record",
        privileges()
    )]
    NotPermitted {
        /// What it refuses.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Tracefs can't be mounted or read.
    #[error(
        "cannot use /sys/kernel/tracing ({source}); run as root and `mount -t tracefs tracefs /sys/kernel/tracing`, \
         or record with `--tier user`"
    )]
    Tracefs {
        /// What the system said.
        source: io::Error,
    },
    /// The kernel has no such tracepoint.
    #[error("this kernel has no tracepoint {name}; record with `--tier user`")]
    NoTracepoint {
        /// Which.
        name: String,
    },
    /// The rings cannot be locked in memory.
    #[error("cannot lock {bytes} bytes for a ring ({source}); give a smaller `--ring`, or raise `ulimit -l`")]
    Ring {
        /// How large the ring was to be.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// BPF programs cannot be used, and nothing else was asked for.
    #[error("the kernel takes no BPF programs here: {what}: {source}; record with `--source perf`")]
    NoPrograms {
        /// What it refuses or lacks.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An ordinary user's recording has no programs.
    #[error("`--source bpf` needs root; an ordinary user's recording takes the calls from `ptrace`")]
    ProgramsNeedRoot,
    /// Programs cannot tell a control group.
    #[error("`--source bpf` cannot follow a control group; record it with `--source perf`")]
    ProgramsFollowThreads,
    /// An ordinary user cannot attach.
    #[error(
        "attaching to what runs needs root; run this command by sudo, or start the program by `quire record -- COMMAND`"
    )]
    NeedsRoot,
    /// An ordinary user's recording has no bound.
    #[error(
        "`--max-overhead` needs root: an ordinary user's recording stops the program at each call, whatever that costs"
    )]
    NoBound,
    /// There is no such process.
    #[error("there is no process {pid}; `ps -e` lists those that run")]
    NoProcess {
        /// Which.
        pid: i32,
    },
    /// It ended.
    #[error("process {pid} has ended; start the program by `quire record -- COMMAND` to record all of it")]
    Ended {
        /// Which.
        pid: i32,
    },
    /// A thread is not a process.
    #[error("{tid} is a thread of process {pid}; give `--pid {pid}` for all its threads")]
    Thread {
        /// The thread.
        tid: i32,
        /// Its process.
        pid: i32,
    },
    /// A thread of the kernel.
    #[error("{pid} is a thread of the kernel, without memory of its own; `ps -e` lists programs too")]
    KernelThread {
        /// Which.
        pid: i32,
    },
    /// The recorder itself.
    #[error("a recorder cannot record itself; `ps -e` lists other processes")]
    Myself,
    /// Another process traces it.
    #[error("process {pid} is traced by process {by}, and a process has one tracer at most; end {by} first")]
    Traced {
        /// Which.
        pid: i32,
        /// By which.
        by: i32,
    },
    /// The kernel does not stop it, or does not let its memory be read.
    #[error(
        "cannot look at the memory of process {pid}: {source}; run as root outside of the container, or give it \
         CAP_SYS_PTRACE and CAP_PERFMON"
    )]
    NotStopped {
        /// Which.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// No control group whose tasks can be followed.
    #[error(
        "cannot follow the control group {path} ({source}); give a directory of a cgroup2 file system, which `mount -t \
         cgroup2` lists"
    )]
    NoCgroup {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A system call failed that should not.
    #[error("{what} failed: {source}; see `dmesg`, or record with `--tier user`")]
    System {
        /// What.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The same in the ordinary user's tier.
    #[error("{what} failed: {source}; see `dmesg`, or record with `--tier privileged`")]
    SystemAsUser {
        /// What.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The privilege that lets this user record what the kernel refuses.
pub(super) fn privileges() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "run as root outside of the container, or give it CAP_PERFMON",
        false => "run as root, or give the command CAP_PERFMON",
    }
}

impl RecordError {
    /// Whether it is about permission, so that the ordinary user's tier may work.
    pub(super) fn is_permission(&self) -> bool {
        match self {
            RecordError::NotPermitted { .. } => true,
            RecordError::Tracefs { source } => {
                matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            }
            _ => false,
        }
    }

    /// The same error, or what it means where programs were asked for: an ordinary user lacks a privilege, and
    /// not a kernel that takes them.
    pub(super) fn of_programs(self) -> RecordError {
        let is_refused =
            |source: &io::Error| matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        match self {
            RecordError::NoPrograms { source, .. }
                if is_refused(&source) && !rustix::process::geteuid().is_root() =>
            {
                RecordError::ProgramsNeedRoot
            }
            other => other,
        }
    }

    /// The exit code of `quire record`, as of shells, `env` and `timeout`.
    pub fn exit_code(&self) -> u8 {
        const FAILED: u8 = 125;
        match self {
            RecordError::CannotStart { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            RecordError::CannotStart { .. } => 126,
            RecordError::NotKept { program_exit_code, .. } if *program_exit_code != 0 => *program_exit_code,
            _ => FAILED,
        }
    }

    /// The same error, without the advice to use this tier.
    pub(super) fn in_tier(self, tier: Tier) -> RecordError {
        match (self, tier) {
            (RecordError::System { what, source }, Tier::User) => RecordError::SystemAsUser { what, source },
            (other, _) => other,
        }
    }

    /// A closure for `map_err` on a call that should not fail.
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RecordError {
        move |error| RecordError::System { what, source: error.into() }
    }
}
