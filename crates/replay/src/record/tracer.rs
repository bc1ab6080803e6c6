//! The process that traces a recording by an ordinary user: parent of the program, child of the recorder.
//!
//! The recorder must be able to end while recorded processes live on. Their filter of system calls stays, and
//! makes every memory call fail once there is no tracer; so the tracer stays too and lets the calls pass.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::SigSet;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setpgid};
use seccompiler::BpfProgram;

use super::RecordError;
use super::calls_by_ptrace;
use super::child::{Folios, Gated, Prepared};
use super::report::{Listener, Report, Reporter};
use super::signals::Inherited;

/// The recorder's handle of the tracer.
pub(super) struct Tracer {
    pub(super) pid: Pid,
    pub(super) listener: Listener,
}

/// Makes the tracer, which makes the program's process and attaches to it.
pub(super) fn start(
    command: &[OsString],
    folios: Folios,
    filter: &BpfProgram,
    inherited: &Inherited,
) -> Result<(Gated, Tracer), RecordError> {
    let prepared = Prepared::new(command, folios)?;
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(RecordError::system("pipe"))?;
    // SAFETY: C2: the recorder has one thread at this point, so the child may do whatever a process may; it never
    // returns from here.
    match unsafe { fork() }.map_err(RecordError::system("fork"))? {
        ForkResult::Child => {
            drop(read);
            trace(prepared, filter, inherited, write);
            // SAFETY: C2: the child ends without running the exit handlers of the recorder.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut tracer = Tracer { pid: child, listener: Listener::new(read) };
            match tracer.first_report() {
                Some(Report::Ready(program)) => Ok((prepared.gated(program, child), tracer)),
                refused => {
                    // Closes the gate for good; both processes end.
                    drop(prepared.gated(child, child));
                    Err(not_traced(refused))
                }
            }
        }
    }
}

fn not_traced(report: Option<Report>) -> RecordError {
    let source = match report {
        Some(Report::Refused(errno)) => errno.into(),
        _ => std::io::Error::from(std::io::ErrorKind::BrokenPipe),
    };
    RecordError::NotPermitted { what: "system calls (ptrace is not allowed here)", source }
}

impl Tracer {
    fn first_report(&mut self) -> Option<Report> {
        let mut first = None;
        while first.is_none() && self.listener.listen(|report| first = Some(report)).ok()? {}
        first
    }
}

/// All that the tracer does, until the last traced process has ended.
fn trace(prepared: Prepared, filter: &BpfProgram, inherited: &Inherited, pipe: OwnedFd) {
    let kept = pipe.as_raw_fd();
    let mut teller = Reporter::new(pipe);
    // Descendants whose parent has ended become children of the tracer, which can wait only for children.
    let started = prctl::set_child_subreaper(true)
        .and_then(|()| prepared.fork(Some(filter), inherited))
        .and_then(|program| {
            drop(prepared);
            withdraw(kept).map(|()| program)
        })
        .and_then(|program| calls_by_ptrace::attach(program).map(|()| program));
    match started {
        Ok(program) => {
            teller.tell(&Report::Ready(program));
            calls_by_ptrace::follow(program, &mut teller);
        }
        Err(errno) => {
            teller.tell(&Report::Refused(errno));
            drop(teller);
            let _ = waitpid(None, Some(WaitPidFlag::__WALL));
        }
    }
}

/// Closes the recorder's descriptors, which would stay open as long as the last process lives, and leaves the
/// recorder's process group, whose signals are not meant for the tracer.
fn withdraw(kept: i32) -> Result<(), Errno> {
    SigSet::all().thread_block()?;
    // It makes no session of its own: the scheduler gives each session its own share of the processors, so a
    // stop of the program would wait for the tracer's turn.
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    chdir("/")?;
    redirect_standard_streams()?;
    for (first, last) in [(3, kept as u32 - 1), (kept as u32 + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: C3: this process uses no descriptor but the pipe from here on, and ends without running
            // destructors.
            let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            Errno::result(outcome)?;
        }
    }
    prctl::set_name(c"quire-tracer")
}

fn redirect_standard_streams() -> Result<(), Errno> {
    let null = File::options().read(true).write(true).open("/dev/null").map_err(|_| Errno::ENODEV)?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)
}
