//! The program to record: a process that waits at a gate until the recording is set up, and only then starts it.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, execvp, fork, pipe2};
use seccompiler::BpfProgram;

use super::RecordError;

/// A process before its gate.
pub(super) struct Gated {
    pub(super) pid: Pid,
    name: String,
    gate: Option<File>,
    /// Says why the program could not start; empty once it has.
    failure: Option<File>,
}

/// A process that has been let through.
pub(super) struct Started {
    pub(super) pid: Pid,
    name: String,
    failure: Option<File>,
}

/// Makes the process. With `filter`, system calls it matches are reported to its tracer.
pub(super) fn prepare(command: &[OsString], filter: Option<&BpfProgram>) -> Result<Gated, RecordError> {
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
    let ((gate_read, gate_write), (failure_read, failure_write)) = (pipe()?, pipe()?);
    // SAFETY: the recorder has one thread at this point, so that the child may do whatever a process may; it
    // uses only what is prepared above, and never returns.
    match unsafe { fork() }.map_err(RecordError::system("fork"))? {
        ForkResult::Parent { child } => {
            let (gate, failure) = (Some(gate_write.into()), Some(failure_read.into()));
            Ok(Gated { pid: child, name, gate, failure })
        }
        ForkResult::Child => {
            drop((gate_write, failure_read));
            let error = become_program(gate_read, &arguments, filter);
            let _ = File::from(failure_write).write_all(&error.raw_os_error().unwrap_or(0).to_le_bytes());
            // SAFETY: ends the process without running the exit handlers that belong to the parent.
            unsafe { libc::_exit(127) }
        }
    }
}

/// Waits at the gate, then starts the program. Returns only if that fails.
fn become_program(gate: OwnedFd, arguments: &[CString], filter: Option<&BpfProgram>) -> io::Error {
    let start = || -> io::Result<()> {
        // SAFETY: nothing in this process depends on the signal; Rust ignores it at start, and a program expects it not to be.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        // It stays through fork and exec.
        prctl::set_thp_disable(true)?;
        File::from(gate).read_exact(&mut [0])?;
        if let Some(filter) = filter {
            seccompiler::apply_filter(filter).map_err(|error| match error {
                seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => source,
                other => io::Error::other(other.to_string()),
            })?;
        }
        execvp(&arguments[0], arguments)?;
        Ok(())
    };
    start().err().unwrap_or_else(|| io::ErrorKind::Other.into())
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
        // A process whose gate is closed for good ends by itself.
        if self.gate.take().is_some() {
            let _ = waitpid(self.pid, Some(WaitPidFlag::__WALL));
        }
    }
}

impl Started {
    /// Whether the program started at all; to be asked when its process has ended.
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
