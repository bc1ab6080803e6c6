//! Waits for the program and everything it started, and reads how many faults the kernel counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{SigId, low_level};

use super::RecordError;
use super::collect::Message;

/// How often to look whether a process has ended.
const INTERVAL: Duration = Duration::from_millis(2);

/// How the program ended and what the kernel counted for it and its children.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) exit_code: u8,
    pub(super) kernel_faults: u64,
    /// The recording was stopped while children of the program still ran.
    pub(super) stopped_early: bool,
}

/// Signals that come to the recorder: an interrupt goes to the whole terminal, so the program has it already; a request
/// to end is passed on.
pub(super) struct Signals {
    interrupted: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Signals {
    pub(super) fn catch(program: Pid) -> Result<Signals, RecordError> {
        let caught = RecordError::system;
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for signal in [SIGINT, SIGQUIT] {
            let id = signal_hook::flag::register(signal, interrupted.clone());
            ids.push(id.map_err(caught("catching signals"))?);
        }
        let pass_on = move || {
            // If it is gone already, so much the better.
            let _ = kill(program, Signal::SIGTERM);
        };
        // SAFETY: the handler does nothing but `kill`, which may be called in a signal handler.
        let id = unsafe { low_level::register(SIGTERM, pass_on) };
        ids.push(id.map_err(caught("catching signals"))?);
        Ok(Signals { interrupted, ids })
    }

    /// Was there an interrupt since the last question?
    fn interrupted(&self) -> bool {
        self.interrupted.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Minor and major faults of a process, and of the children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultCounts {
    pub(super) minor: u64,
    pub(super) major: u64,
    pub(super) children: u64,
}

/// Reads them of a process that exists, even as a zombie.
pub(super) fn fault_counts(pid: Pid) -> Option<FaultCounts> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

pub(super) fn parse_stat(stat: &str) -> Option<FaultCounts> {
    // The name may contain anything, so the fields are counted from its closing bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(7).map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let (minor, child_minor, major, child_major) = (next()?, next()?, next()?, next()?);
    Some(FaultCounts { minor, major, children: child_minor + child_major })
}

/// Waits until the program and all its descendants have ended. The recorder is their subreaper, so that those whose
/// parent has gone end here too.
pub(super) fn all(
    program: Pid,
    before: FaultCounts,
    signals: &Signals,
    messages: &Sender<Message>,
) -> Result<Ended, RecordError> {
    let mut ended = Ended::default();
    let mut program_ended = false;
    loop {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::All, flags) {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) => {
                let before = if pid == program { before } else { FaultCounts::default() };
                ended.kernel_faults += count(pid, before, messages);
                let status = waitpid(pid, None).map_err(RecordError::system("waitpid"))?;
                if pid == program {
                    program_ended = true;
                    ended.exit_code = exit_code(status);
                }
            }
            Err(Errno::ECHILD) => return Ok(ended),
            Err(Errno::EINTR) | Ok(_) => {
                if program_ended && signals.interrupted() {
                    ended.stopped_early = true;
                    return Ok(ended);
                }
                std::thread::sleep(INTERVAL);
            }
            Err(errno) => return Err(RecordError::system("waiting for the program")(errno)),
        }
    }
}

/// Reads the counts of a process that has ended, tells them, and gives the sum with its children's.
pub(super) fn count(pid: Pid, before: FaultCounts, messages: &Sender<Message>) -> u64 {
    let Some(counts) = fault_counts(pid) else { return 0 };
    let (minor, major) =
        (counts.minor.saturating_sub(before.minor), counts.major.saturating_sub(before.major));
    // The collector may have failed already; its error is reported when it is joined.
    let _ = messages.send(Message::Counted { pid: pid.as_raw() as u32, minor, major });
    minor + major + counts.children
}

/// As a shell says it.
pub(super) fn exit_code(status: WaitStatus) -> u8 {
    match status {
        WaitStatus::Exited(_, code) => code as u8,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as u8,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
