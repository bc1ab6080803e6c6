//! Whether a thread gets on: what it does at one moment, as `/proc` shows it.

use std::fs::read_to_string;

use nix::unistd::Pid;

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
    let stat = read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let times = read_to_string(format!("/proc/{tid}/schedstat")).ok()?;
    parse(&stat, &times)
}

fn parse(stat: &str, times: &str) -> Option<Sample> {
    // The name may contain any character, so the state is what follows its closing bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let state = match fields.split_whitespace().next()? {
        "R" => State::Ready,
        "T" | "t" | "Z" | "X" => State::Stopped,
        _ => State::Sleeps,
    };
    let mut times = times.split_whitespace().map(|time| time.parse::<u64>().ok());
    let mut next = || times.next().flatten();
    let (ran_ns, _ready_ns, slices) = (next()?, next()?, next()?);
    Some(Sample { state, ran_ns, slices })
}

#[cfg(test)]
mod tests;
