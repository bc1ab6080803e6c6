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
    /// What to sample of the processes meanwhile.
    pub referenced: Option<Sampling>,
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
