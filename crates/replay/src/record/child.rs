//! The program to record: a process that waits at a gate until the recording is set up, and only then starts it.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, close, execvp, fork, pipe2, read, write};
use seccompiler::BpfProgram;

use super::RecordError;
use super::options::Thp;
use super::signals::Inherited;

/// What a process needs to become the program. Made before the fork, so that the recorder has its ends of the
/// pipes whichever process forks.
pub(super) struct Prepared {
    name: String,
    folios: Folios,
    ends_with_recorder: bool,
    arguments: Vec<CString>,
    gate: (OwnedFd, OwnedFd),
    failure: (OwnedFd, OwnedFd),
}

/// The folios of the program's anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folios {
    /// Single pages.
    Small,
    /// What the process that starts the recorder would get.
    Inherited,
    /// What the settings of the kernel say.
    AsSet,
}

impl From<Thp> for Folios {
    fn from(thp: Thp) -> Self {
        match thp {
            Thp::Off => Folios::Small,
            Thp::AsIs => Folios::Inherited,
        }
    }
}

/// A process before its gate.
pub(super) struct Gated {
    pub(super) pid: Pid,
    /// The process to wait for: this one, or its parent.
    child: Pid,
    name: String,
    gate: Option<File>,
    /// Carries the error if the program could not start; empty once it has started.
    failure: Option<File>,
}

/// A process whose gate was opened.
pub(super) struct Started {
    pub(super) pid: Pid,
    name: String,
    failure: Option<File>,
}

/// Makes the process as a child of the recorder; see [`Options::ends_with_recorder`](super::Options::ends_with_recorder).
pub(super) fn prepare(
    command: &[OsString],
    folios: Folios,
    ends_with_recorder: bool,
    inherited: &Inherited,
) -> Result<Gated, RecordError> {
    let prepared = Prepared { ends_with_recorder, ..Prepared::new(command, folios)? };
    let pid = prepared.fork(None, inherited).map_err(RecordError::system("fork"))?;
    Ok(prepared.gated(pid, pid))
}

impl Prepared {
    pub(super) fn new(command: &[OsString], folios: Folios) -> Result<Prepared, RecordError> {
        let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let cannot = |source: io::Error| RecordError::CannotStart { program: name.clone(), source };
        let arguments = command
            .iter()
            .map(|argument| CString::new(argument.clone().into_vec()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| cannot(error.into()))?;
        if arguments.is_empty() {
            return Err(cannot(io::ErrorKind::InvalidInput.into()));
        }
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(RecordError::system("pipe"));
        let (gate, failure) = (pipe()?, pipe()?);
        Ok(Prepared { folios, ends_with_recorder: false, gate, failure, name, arguments })
    }

    /// Makes the process. With `filter`, its tracer gets the system calls that match.
    pub(super) fn fork(&self, filter: Option<&BpfProgram>, inherited: &Inherited) -> nix::Result<Pid> {
        // SAFETY: C2: the caller has one thread, so the child may do whatever a process may; it uses only what is
        // prepared, and never returns.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                let error = self.become_program(filter, inherited).err();
                let code = error.and_then(|error| error.raw_os_error()).unwrap_or(0);
                let _ = write(&self.failure.1, &code.to_le_bytes());
                // SAFETY: C2: the child ends without running the exit handlers of its parent.
                unsafe { libc::_exit(127) }
            }
        }
    }

    /// Waits at the gate, then starts the program. Returns only if that fails.
    fn become_program(&self, filter: Option<&BpfProgram>, inherited: &Inherited) -> io::Result<()> {
        // The gate closes for good when the recorder ends, but only if no other process holds it open.
        close(self.gate.1.as_raw_fd())?;
        // SAFETY: C3: the default action installs no handler. (Rust ignores the signal at start; a program expects
        // that it is not ignored.)
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        // The setting survives fork and exec.
        if self.folios != Folios::Inherited {
            prctl::set_thp_disable(self.folios == Folios::Small)?;
        }
        // If the recorder has ended already, the gate says so.
        if self.ends_with_recorder {
            prctl::set_pdeathsig(Signal::SIGTERM)?;
        }
        if read(&self.gate.0, &mut [0])? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // From here on an earlier signal is delivered.
        inherited.restore()?;
        if let Some(filter) = filter {
            seccompiler::apply_filter(filter).map_err(|error| match error {
                seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => source,
                other => io::Error::other(other.to_string()),
            })?;
        }
        execvp(&self.arguments[0], &self.arguments)?;
        Ok(())
    }

    /// The recorder's side of the process; `child` is the recorder's child that ends when the process does.
    pub(super) fn gated(self, pid: Pid, child: Pid) -> Gated {
        let (gate, failure) = (Some(self.gate.1.into()), Some(self.failure.0.into()));
        Gated { pid, child, name: self.name, gate, failure }
    }
}

impl Gated {
    /// Opens the gate.
    pub(super) fn start(mut self) -> Result<Started, RecordError> {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(&[1]).map_err(RecordError::system("starting the program"))?;
        }
        Ok(Started { pid: self.pid, name: std::mem::take(&mut self.name), failure: self.failure.take() })
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        // A process whose gate closes for good ends by itself.
        if self.gate.take().is_some() {
            let _ = waitpid(self.child, Some(WaitPidFlag::__WALL));
        }
    }
}

impl Started {
    /// Whether the program started; called when its process has ended.
    pub(super) fn outcome(mut self) -> Result<(), RecordError> {
        let mut code = [0; 4];
        match self.failure.as_mut().map(|failure| failure.read_exact(&mut code)) {
            None | Some(Err(_)) => Ok(()),
            Some(Ok(())) => Err(RecordError::CannotStart {
                program: self.name,
                source: io::Error::from_raw_os_error(i32::from_le_bytes(code)),
            }),
        }
    }
}
