//! Whether a thread gets on: what it does at one moment, as `/proc` shows it.

use nix::unistd::Pid;
use procfs::process::Process;

/// A thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) state: State,
    /// How long it has run on processors.
    pub(super) ran_ns: u64,
    /// How often it was given a processor.
    pub(super) slices: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It runs, or is ready to run and waits for a processor.
    Ready,
    Sleeps,
    /// Its tracer is about to be told that it stopped or ended.
    Stopped,
}

/// Looks at a thread. `None` if it is gone, or if the kernel does not show how long threads run.
pub(super) fn look(tid: Pid) -> Option<Sample> {
    let thread = Process::new(tid.as_raw()).ok()?;
    let (stat, times) = (thread.stat().ok()?, thread.schedstat().ok()?);
    let state = match stat.state {
        'R' => State::Ready,
        'T' | 't' | 'Z' | 'X' => State::Stopped,
        _ => State::Sleeps,
    };
    Some(Sample { state, ran_ns: times.sum_exec_runtime, slices: times.pcount })
}

#[cfg(test)]
mod tests;
