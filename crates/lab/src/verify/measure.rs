//! Runs a program under each folio size, and reads what the kernel counted.
//!
//! Each run has a process of its own between this one and the program. The kernel counts the memory of a process
//! before it execs as the program's peak, and the command has much of it after a replay.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::streams::Streams;
use crate::output::quoted;
use crate::record::{Counted, run_unrecorded};
use crate::replay::FolioSize;
use crate::settings::{Places, Settings};

/// The name of the subcommand below.
const SUBCOMMAND: &str = "verify-run";

/// The runs under one size.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) runs: Vec<Counted>,
    /// Faults in the whole system that found no free folio of the size meanwhile.
    pub(super) fell_back: u64,
}

/// Runs the command once to warm the page cache, and then `runs` times under each size, the sizes in turn.
///
/// # Errors
/// A command that cannot be run, settings that this user may not change.
pub(super) fn measure(
    places: &Places,
    command: &[OsString],
    sizes: &[FolioSize],
    runs: u32,
    shown: bool,
) -> Result<Vec<Runs>> {
    let settings = Settings::acquire(places)?;
    settings.hold_khugepaged()?;
    let mut measured = vec![Runs::default(); sizes.len()];
    for turn in 0..=runs {
        for (size, measured) in sizes.iter().zip(&mut measured) {
            settings.always(size.kib())?;
            let fell_back = || settings.fell_back(size.kib()).unwrap_or(0);
            let before = fell_back();
            let counted = child(command, shown)?;
            // The first turn warms the page cache. One run is enough for that.
            if turn == 0 {
                break;
            }
            measured.fell_back += fell_back() - before;
            measured.runs.push(counted);
        }
    }
    Ok(measured)
}

/// Runs the command once, in a process of its own.
fn child(command: &[OsString], shown: bool) -> Result<Counted> {
    let itself = env::current_exe().context("cannot find this command's own file")?;
    let mut run = Command::new(itself);
    run.arg(SUBCOMMAND).args(shown.then_some("--show-output")).arg("--").args(command);
    let output = run.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start a run")?;
    if !output.status.success() {
        let name = command.first().cloned().unwrap_or_default();
        bail!("a run of {} was not completed ({})", quoted(&name), output.status);
    }
    serde_json::from_slice(&output.stdout).context("a run did not tell its counts")
}

/// One run, as `quire verify` starts it: prints what the kernel counted.
#[derive(Clone, Debug, clap::Args)]
#[command(name = SUBCOMMAND)]
pub struct RunArgs {
    #[arg(long)]
    show_output: bool,
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `quire verify-run`.
///
/// # Errors
/// See [`RecordError`](crate::record::RecordError).
pub(crate) fn run_once(args: &RunArgs) -> Result<()> {
    // A run without its measurement is of no use: the signal is passed on to the program.
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    let streams = Streams::of_program(args.show_output)?;
    let counted = run_unrecorded(&args.command);
    drop(streams);
    let counted = serde_json::to_vec(&counted?)?;
    Ok(std::io::stdout().write_all(&counted)?)
}
