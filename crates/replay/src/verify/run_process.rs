//! One run of a program, in a process of its own between this one and the program: the hidden subcommand `verify-run`.
//!
//! The kernel counts the memory of a process before it execs as the program's peak, and this process has much of it after a
//! replay. The process of a run waits for all that the program starts, and ends the program if this process is killed.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use super::streams::Streams;
use crate::output::quoted;
use crate::record::{Counted, Peak, run_unrecorded};

/// The name of the subcommand below.
const SUBCOMMAND: &str = "verify-run";

/// A run to start.
pub(super) struct RunProcess<'a> {
    pub(super) command: &'a [OsString],
    /// Whether the user sees what it writes.
    pub(super) shown: bool,
    pub(super) peak: Peak,
    /// The file by which the program joins its control group.
    pub(super) group: Option<PathBuf>,
}

impl RunProcess<'_> {
    /// Runs; returns what the kernel counted.
    ///
    /// # Errors
    /// A command that cannot be run.
    pub(super) fn counted(&self) -> Result<Counted> {
        let output = self.process()?.stderr(Stdio::inherit()).output().context("cannot start a run")?;
        if !output.status.success() {
            let name = self.command.first().map_or(OsStr::new(""), OsString::as_os_str);
            bail!("a run of {} was not completed ({})", quoted(name), output.status);
        }
        serde_json::from_slice(&output.stdout).context("a run did not tell its counts")
    }

    /// Runs, and keeps nothing of it: what the program reads is in the page cache then.
    ///
    /// # Errors
    /// A process that cannot be started; it may fail.
    pub(super) fn warm(&self) -> Result<()> {
        self.process()?.stderr(Stdio::null()).output().context("cannot start a run")?;
        Ok(())
    }

    /// Its process, without a standard input.
    fn process(&self) -> Result<Command> {
        let itself = env::current_exe().context("cannot find this command's own file")?;
        let mut run = Command::new(itself);
        run.arg(SUBCOMMAND)
            .args(["--parent", &process::id().to_string()])
            .args(self.peak.is_seen().then_some("--see-peak"))
            .args((self.peak == Peak::SeenWithHuge).then_some("--see-huge"))
            .args(self.shown.then_some("--show-output"));
        if let Some(group) = &self.group {
            run.arg("--group").arg(group);
        }
        run.arg("--").args(self.command).stdin(Stdio::null());
        Ok(run)
    }
}

/// One run, as `quire verify` starts it: prints what the kernel counted.
#[derive(Clone, Debug, clap::Args)]
#[command(name = SUBCOMMAND)]
pub struct RunArgs {
    /// The process that waits for the run.
    #[arg(long)]
    parent: Option<u32>,
    #[arg(long)]
    see_peak: bool,
    #[arg(long)]
    see_huge: bool,
    #[arg(long)]
    show_output: bool,
    #[arg(long)]
    group: Option<PathBuf>,
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `quire verify-run`.
///
/// # Errors
/// See [`RecordError`](crate::record::RecordError).
pub fn run_once(args: &RunArgs) -> Result<()> {
    // A run without its measurement is of no use: the signal is passed on to the program.
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    if args.parent.is_some_and(|parent| parent.cast_signed() != getppid().as_raw()) {
        bail!("the process that waits for this run has ended");
    }
    let streams = Streams::of_program(args.show_output)?;
    let peak = match (args.see_peak, args.see_huge) {
        (_, true) => Peak::SeenWithHuge,
        (true, false) => Peak::Seen,
        (false, false) => Peak::Counted,
    };
    let counted = run_unrecorded(&args.command, peak, args.group.as_deref());
    drop(streams);
    let counted = serde_json::to_vec(&counted?)?;
    Ok(std::io::stdout().write_all(&counted)?)
}
