//! Runs a program as a recording does, but records nothing, and reads what the kernel counted.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::child::{self, Folios};
use super::exits::{self, Exits, ProcessPeak};
use super::follow::{self, FaultCounts, Following};
use super::options::Wait;
use super::signals::Signals;
use super::{RecordError, collect};

/// What the kernel counted for a program and all that it started.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// The program's exit code.
    pub exit_code: u8,
    /// Minor and major faults of all processes, counted as those of a recording are.
    pub faults: u64,
    /// The largest resident memory that any one process had.
    pub peak_rss_bytes: u64,
    /// Every process in the order in which they were started, where peaks are [`Peak::Seen`].
    pub processes: Vec<ProcessPeak>,
    /// Time in the kernel, of all processes.
    pub kernel_ns: u64,
    /// When the program was started (`CLOCK_MONOTONIC`).
    pub began: Duration,
    /// From the start of the program to the end of its last process.
    pub run_ns: u64,
}

/// How the peak of resident memory is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peak {
    /// By the kernel's count, which contains the memory of the process that becomes the program.
    Counted,
    /// At the end of each process, which is stopped there. That costs time.
    Seen,
    /// The same, with its memory in leaves of 2 MiB. The kernel walks its page tables for that.
    SeenWithHuge,
}

impl Peak {
    /// Whether processes are stopped at their ends.
    pub fn is_seen(self) -> bool {
        self != Self::Counted
    }
}

/// Runs the command to its end, with all that it starts, under the folio sizes that the kernel is set to. `group` is the file
/// by which processes join a control group; this process joins none.
///
/// Call it from a process with one thread, no other children, and little memory of its own.
///
/// # Errors
/// See [`RecordError`].
pub fn run_unrecorded(
    command: &[OsString],
    peak: Peak,
    group: Option<&Path>,
) -> Result<Counted, RecordError> {
    let mut signals = Signals::keep()?;
    let gated = child::prepare(command, Folios::AsSet, false, &signals.inherited())?;
    prctl::set_child_subreaper(true).map_err(RecordError::system("becoming subreaper"))?;
    wait_at_gate(gated.pid);
    let before = follow::fault_counts(gated.pid).unwrap_or_default();
    if let Some(group) = group {
        fs::write(group, gated.pid.to_string()).map_err(RecordError::system("joining the control group"))?;
    }
    if peak.is_seen() {
        exits::attach(gated.pid).map_err(RecordError::system("tracing the program"))?;
    }
    let began =
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(RecordError::system("reading a clock"))?.into();
    let since = Instant::now();
    let started = gated.start()?;
    let exits = match peak {
        Peak::Counted => Exits { exit_code: follow(started.pid, &mut signals)?, processes: Vec::new() },
        Peak::Seen | Peak::SeenWithHuge => {
            // A signal to this process ends the program too.
            drop(signals);
            exits::follow(started.pid, peak == Peak::SeenWithHuge)
                .map_err(RecordError::system("waiting for the program"))?
        }
    };
    let run_ns = since.elapsed().as_nanos() as u64;
    started.outcome()?;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(RecordError::system("getrusage"))?;
    let (faults, kernel) = (usage.minor_page_faults() + usage.major_page_faults(), usage.system_time());
    let counted_peak = usage.max_rss() as u64 * 1024;
    let seen_peak = exits.processes.iter().map(|process| process.peak_rss_bytes).max().unwrap_or(0);
    Ok(Counted {
        exit_code: exits.exit_code,
        faults: (faults as u64).saturating_sub(before.minor + before.major),
        peak_rss_bytes: if seen_peak == 0 { counted_peak } else { seen_peak },
        processes: exits.processes,
        kernel_ns: kernel.tv_sec() as u64 * 1_000_000_000 + kernel.tv_usec() as u64 * 1000,
        began,
        run_ns,
    })
}

/// Waits for the end of the program and of all that it started; returns the program's exit code.
fn follow(program: Pid, signals: &mut Signals) -> Result<u8, RecordError> {
    let (messages, _unread) = mpsc::channel();
    let heard_ns = &AtomicU64::new(collect::ALL_HEARD);
    let (before, wait) = (FaultCounts::default(), Wait::All);
    let following = Following { program, before, signals, wait, messages: &messages, heard_ns };
    Ok(following.children()?.exit_code)
}

/// Waits until the process sleeps at its gate: it has taken all its faults by then, but those of the program.
fn wait_at_gate(pid: Pid) {
    let state = || procfs::process::Process::new(pid.as_raw()).and_then(|process| process.stat());
    while state().is_ok_and(|stat| stat.state == 'R') {
        thread::yield_now();
    }
}
