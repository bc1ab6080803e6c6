//! What to record of a program that is started.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::referenced::Sampling;
use crate::trace::{Program, Tier};

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace's target; `-` is standard output, and the program's own standard output then goes to
    /// standard error.
    pub output: PathBuf,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The tier; `None` for the best that is permitted.
    pub tier: Option<Tier>,
    /// Bytes of each CPU's ring, a power of two of at least a page; `None` for the tier's default.
    pub ring_bytes: Option<usize>,
    /// Name and version of the program, as far as known.
    pub program: Program,
    /// Whether to leave the arguments out of the trace, and keep only the program's name.
    pub no_arguments: bool,
    /// When the recording ends.
    pub wait: Wait,
    /// Whether the program gets SIGTERM when the recorder ends before it, as one does that a command runs for itself. In the
    /// privileged tier.
    pub ends_with_recorder: bool,
    /// Whether the program gets transparent huge pages.
    pub thp: Thp,
    /// The share of the program's time that recording may cost before it drops faults; `None` for no bound. Only the
    /// privileged tier has one.
    pub max_overhead: Option<f64>,
    /// What to sample of the processes meanwhile.
    pub accesses: Source,
    /// What tells faults and calls in the privileged tier.
    pub interface: Interface,
}

/// What of the kernel tells faults and calls, in the privileged tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Interface {
    /// BPF programs where the kernel takes them, else perf.
    #[default]
    Auto,
    /// BPF programs, one record for each fault and call; fails where the kernel does not take them.
    Bpf,
    /// Perf's records, two to four for each.
    Perf,
}

impl Interface {
    /// As the command line and summaries have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Interface::Auto => "auto",
            Interface::Bpf => "bpf",
            Interface::Perf => "perf",
        }
    }

    /// As a summary in words has it.
    pub(super) const fn full_name(self) -> &'static str {
        match self {
            Interface::Bpf => "BPF programs",
            other => other.name(),
        }
    }
}

/// How to learn which memory the processes access.
#[derive(Clone, Copy, Debug, Default)]
pub enum Source {
    /// Not at all.
    #[default]
    Nothing,
    /// By the accessed bits of each mapping. They are no part of the trace.
    Referenced(Sampling),
    /// By DAMON, into the trace; where this kernel cannot, by the accessed bits of each mapping if they are sampled so.
    Damon(Option<Sampling>),
}

/// Transparent huge pages of a program that is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Thp {
    /// None: each recorded fault brings in one page, so that a replay can tell what every size would do.
    #[default]
    Off,
    /// What the program would get without the recorder.
    AsIs,
}

/// When a recording ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// When the program and all processes that it started have ended.
    #[default]
    All,
    /// When the program itself has ended; processes that it leaves behind run on unrecorded.
    Main,
}
