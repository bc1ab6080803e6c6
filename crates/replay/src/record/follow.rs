//! Waits for the program and everything it started, answers signals meanwhile, and reads how many faults the kernel
//! counted.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::collect::Message;
use super::options::Wait;
use super::proc_files;
use super::raw::now_ns;
use super::report::Report;
use super::signals::{Request, Signals};
use super::traced::{self, Change};
use super::tracer::Tracer;
use super::{RecordError, tree};

/// Reports are read in batches, so that the recorder does not wake up for each.
const BUNCH: Duration = Duration::from_millis(1);

/// How often the recorder looks for reports of a tracer that has none: what else was recorded waits for the look.
const LOOK_MS: u8 = 50;

/// The end of the program, and the kernel's counts for it and its children.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) exit_code: u8,
    pub(super) kernel_faults: u64,
    /// The time at which the recording ended while processes still ran.
    pub(super) early_ns: Option<u64>,
    /// The processes that run on.
    pub(super) left: Vec<Pid>,
    /// Programs that ran without the privilege that their files grant.
    pub(super) unprivileged: Vec<String>,
}

/// A recording in progress.
pub(super) struct Following<'a> {
    pub(super) program: Pid,
    /// Faults of the program's process before it ran the program.
    pub(super) before: FaultCounts,
    pub(super) signals: &'a mut Signals,
    pub(super) wait: Wait,
    pub(super) messages: &'a Sender<Message>,
    /// The time up to which a tracer's reports have been sent as messages.
    pub(super) heard_ns: &'a AtomicU64,
}

/// Minor and major faults of a process, and of the children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultCounts {
    pub(super) minor: u64,
    pub(super) major: u64,
    pub(super) children: u64,
}

/// Reads the counts of a process, which may be a zombie.
pub(super) fn fault_counts(pid: Pid) -> Option<FaultCounts> {
    let stat = proc_files::text(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

pub(super) fn parse_stat(stat: &str) -> Option<FaultCounts> {
    // The name may contain any character, so the fields are counted from its closing bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(7).map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let (minor, child_minor, major, child_major) = (next()?, next()?, next()?, next()?);
    Some(FaultCounts { minor, major, children: child_minor.checked_add(child_major)? })
}

impl Following<'_> {
    /// Waits for the end of the recording. The recorder is the subreaper, so it also reaps descendants whose
    /// parent has ended.
    pub(super) fn children(mut self) -> Result<Ended, RecordError> {
        let mut ended = Ended::default();
        let mut program_ended = false;
        loop {
            let request = self.signals.answer(self.program, None);
            program_ended |= self.reap(&mut ended)?;
            if !tree::has_children() {
                return Ok(ended);
            }
            if self.is_over(program_ended, request, None, &mut ended) {
                return Ok(ended);
            }
            wait_for(&[&*self.signals], PollTimeout::NONE);
        }
    }

    /// Reaps the children that have ended; true if the program was among them.
    fn reap(&mut self, ended: &mut Ended) -> Result<bool, RecordError> {
        let mut program_ended = false;
        loop {
            match traced::zombie() {
                Ok(Some(pid)) => {
                    let before = if pid == self.program { self.before } else { FaultCounts::default() };
                    ended.kernel_faults += count(pid, before, self.messages);
                    let end = traced::poll_one(pid).map_err(RecordError::system("waitpid"))?;
                    if pid == self.program {
                        program_ended = true;
                        ended.exit_code = end.and_then(Change::exit_code).unwrap_or_default();
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) | Ok(None) => return Ok(program_ended),
                Err(errno) => return Err(RecordError::system("waiting for the program")(errno)),
            }
        }
    }

    /// Reads the reports of a tracer, the parent of the program and its descendants, until the end of the
    /// recording.
    pub(super) fn reports(self, tracer: &mut Tracer) -> Result<Ended, RecordError> {
        let mut ended = Ended::default();
        let mut program_ended = false;
        loop {
            wait_for(&[&*self.signals, &tracer.listener], LOOK_MS.into());
            let request = self.signals.answer(self.program, Some(tracer.pid));
            let mut open = self.listen(tracer, &mut program_ended, &mut ended)?;
            if open && self.is_over(program_ended, request, Some(tracer.pid), &mut ended) {
                // The reports up to then.
                open = self.listen(tracer, &mut program_ended, &mut ended)?;
                if open {
                    return Ok(ended);
                }
            }
            if !open {
                let _ = waitpid(tracer.pid, None);
                if !program_ended {
                    // The program ends with its tracer.
                    ended.exit_code = 128 + Signal::SIGKILL as u8;
                }
                return Ok(Ended { early_ns: None, left: vec![], ..ended });
            }
            std::thread::sleep(BUNCH);
        }
    }

    /// Takes the waiting reports; false once the tracer has ended.
    fn listen(
        &self,
        tracer: &mut Tracer,
        program_ended: &mut bool,
        ended: &mut Ended,
    ) -> Result<bool, RecordError> {
        loop {
            let now_ns = now_ns();
            if !is_readable(&tracer.listener) {
                self.heard_ns.store(now_ns, Ordering::Release);
                return Ok(true);
            }
            let heard = tracer.listener.listen(|report| *program_ended |= self.heard(report, ended));
            if !heard.map_err(RecordError::system("listening to the tracer"))? {
                return Ok(false);
            }
        }
    }

    /// Takes a report; true if it is the program's end.
    fn heard(&self, report: Report, ended: &mut Ended) -> bool {
        let less = self.before.minor + self.before.major;
        match report {
            // The collector may have failed already; its error is reported when it is joined.
            Report::Raw(raw) => drop(self.messages.send(Message::Raw(raw))),
            Report::Unprivileged { name } => {
                let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
                if !ended.unprivileged.contains(&name) {
                    ended.unprivileged.push(name);
                }
            }
            Report::Ended { exit_code, faults } => {
                ended.exit_code = exit_code;
                ended.kernel_faults = faults.saturating_sub(less);
                return true;
            }
            Report::AllEnded { faults } => ended.kernel_faults = faults.saturating_sub(less),
            Report::Ready(_) | Report::Refused(_) => {}
        }
        false
    }

    /// Whether the recording ends while processes may still run; records these.
    fn is_over(&self, program_ended: bool, request: Request, tracer: Option<Pid>, ended: &mut Ended) -> bool {
        match request {
            Request::Continue if program_ended && self.wait == Wait::Main => {}
            Request::Continue => return false,
            Request::End(_) if program_ended => {}
            Request::End(signal) => ended.exit_code = 128 + signal as u8,
        }
        ended.early_ns = Some(now_ns());
        ended.left = tree::members(tracer).into_iter().map(|member| member.pid).collect();
        for pid in &ended.left {
            let before = if *pid == self.program { self.before } else { FaultCounts::default() };
            ended.kernel_faults += count(*pid, before, self.messages);
        }
        true
    }
}

fn wait_for(ready: &[&dyn AsFd], at_most: PollTimeout) {
    let mut polled: Vec<PollFd> = ready.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    // Interrupted or not, the arrived reports are read next.
    let _ = poll(&mut polled, at_most);
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Reads and sends the counts of a process; returns the sum with its children's.
pub(super) fn count(pid: Pid, before: FaultCounts, messages: &Sender<Message>) -> u64 {
    let Some(counts) = fault_counts(pid) else { return 0 };
    let (minor, major) =
        (counts.minor.saturating_sub(before.minor), counts.major.saturating_sub(before.major));
    // The collector may have failed already; its error is reported when it is joined.
    let _ = messages.send(Message::Counted { pid: pid.as_raw() as u32, minor, major });
    minor + major + counts.children
}

#[cfg(test)]
mod tests;
