//! Signals to the recorder while it records. It reads them from a descriptor and never handles them, so no
//! signal can end the recorder and lose the trace.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::RecordError;
use super::tree::{self, Member};

/// Signals that ask the recorder to end: every one that a user, a shell, a service manager or a limit sends
/// for that.
const ENDING: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGXCPU,
];

/// Signals whose meaning only the program knows.
const PROGRAMS_OWN: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// A terminal sends these to its foreground process group.
const FROM_TERMINAL: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

/// Requests closer together count as one: `timeout` signals its child and then its process group, and a shell
/// that lost its terminal repeats the terminal's signal.
const SAME_REQUEST: Duration = Duration::from_millis(100);

/// The signal dispositions that the recorder inherited; it restores them for the program.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    mask: SigSet,
    child: SigAction,
}

impl Inherited {
    /// Restores them in this process.
    pub(super) fn restore(&self) -> nix::Result<()> {
        // SAFETY: C3: the disposition is one that this process had; no handler of the recorder is involved.
        unsafe { sigaction(Signal::SIGCHLD, &self.child) }?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)
    }
}

/// The signals that have arrived and are not handled yet.
pub(super) struct Signals {
    arrived: SignalFd,
    inherited: Inherited,
    /// The time and the signal of the first request to end.
    asked: Option<(Instant, Signal)>,
}

/// The request of the signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Continue recording.
    Continue,
    /// End the recording now, whatever still runs.
    End(Signal),
}

impl Signals {
    /// Keeps signals from now on for [`Signals::answer`]. Call it before the recorder has a second thread.
    pub(super) fn keep() -> Result<Signals, RecordError> {
        let failed = RecordError::system;
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: C3: the action is complete and installs no handler. (Children of a process that ignores this
        // signal leave no exit code.)
        let child = unsafe { sigaction(Signal::SIGCHLD, &default) }.map_err(failed("keeping signals"))?;
        let mut kept = SigSet::empty();
        kept.extend(ENDING.into_iter().filter(|signal| !is_left_ignored(*signal)));
        kept.extend(PROGRAMS_OWN);
        kept.add(Signal::SIGCHLD);
        let mut mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&kept), Some(&mut mask))
            .map_err(failed("keeping signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let arrived = SignalFd::with_flags(&kept, flags).map_err(failed("keeping signals"))?;
        Ok(Signals { arrived, inherited: Inherited { mask, child }, asked: None })
    }

    pub(super) fn inherited(&self) -> Inherited {
        self.inherited
    }

    /// Passes the arrived signals on. The first request to end goes to all recorded processes; a second one
    /// ends the recording. The time between them begins when the first has been passed on, which takes long on a
    /// busy machine.
    pub(super) fn answer(&mut self, program: Pid, tracer: Option<Pid>) -> Request {
        while let Some((signal, by_kernel)) = self.next() {
            if PROGRAMS_OWN.contains(&signal) {
                tree::send(signal, &[program]);
            } else if ENDING.contains(&signal) {
                match self.asked {
                    Some((first, _)) if first.elapsed() < SAME_REQUEST => {}
                    Some(_) => return Request::End(signal),
                    None => {
                        pass_on(signal, by_kernel, tracer);
                        self.asked = Some((Instant::now(), signal));
                    }
                }
            }
        }
        Request::Continue
    }

    /// The first signal that asked the recorder to end, passed on already or waiting.
    pub(super) fn asked(&self) -> Option<Signal> {
        let passed_on = self.asked.map(|(_, signal)| signal);
        let mut waiting = std::iter::from_fn(|| self.next()).map(|(signal, _)| signal);
        passed_on.or_else(|| waiting.find(|signal| ENDING.contains(signal)))
    }

    /// The oldest waiting signal, and whether the kernel sent it of its own accord.
    fn next(&self) -> Option<(Signal, bool)> {
        let info = self.arrived.read_signal().ok().flatten()?;
        let signal = Signal::try_from(info.ssi_signo as i32).ok()?;
        Some((signal, info.ssi_code == libc::SI_KERNEL))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A waiting signal would end the recorder now, after its work is done.
        while self.next().is_some() {}
        let _ = self.inherited.restore();
    }
}

/// A hangup that `nohup` ignores stays ignored. A script's background jobs ignore interrupts too, but those
/// end a recording or a measurement, since no other sender reaches it by accident.
pub fn is_left_ignored(signal: Signal) -> bool {
    let status = procfs::process::Process::myself().and_then(|process| process.status());
    signal == Signal::SIGHUP && status.is_ok_and(|status| status.sigign & 1 << (signal as u64 - 1) != 0)
}

/// Sends a signal to all recorded processes. A terminal has sent it to the recorder's process group already.
fn pass_on(signal: Signal, by_kernel: bool, tracer: Option<Pid>) {
    let from_terminal = by_kernel && FROM_TERMINAL.contains(&signal);
    let own_group = nix::unistd::getpgrp();
    tree::send_to_all(signal, tracer, |member: &Member| !(from_terminal && member.group == own_group));
}
