//! `quire calibrate`: measures the ways to clear and copy memory on this machine, and shows which one is chosen for what.

#[cfg(fuzzing)]
pub mod fuzzing;
mod kept;
mod measure;
mod saved;
mod show;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use quire::arch::CpuFeatures;
use quire::clear::{Calibration, ClearPolicy};

pub use kept::{Chosen, choose, place};
pub use measure::{Effort, measure};
pub use saved::{Saved, load, save};

use crate::output::{self, Target, quoted, say};

/// Measures the ways to clear and copy memory on this machine, and shows which one is chosen for what.
///
/// What was measured is kept in $XDG_CACHE_HOME/quire/calibration.json, or in ~/.cache, where `quire replay` finds it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Few extents, little memory: shows that everything works, the figures say little, and are kept only where --save says.
    #[arg(long)]
    smoke: bool,
    /// Show what was saved in FILE instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "smoke"])]
    load: Option<PathBuf>,
    /// Save what was measured to FILE, and keep it nowhere else (`-`: standard output, everything else to standard error).
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write what was measured as JSON to standard output, and everything else to standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    show: output::Show,
}

/// Runs `quire calibrate`.
///
/// # Errors
/// A file that cannot be read or written, figures of another processor, or too little memory.
pub fn run(args: &Args) -> Result<()> {
    let save = args.save.as_deref().map(Target::named).transpose()?;
    let json = args.json.then(|| Target::named(Path::new("-"))).transpose()?;
    args.show.apply();
    let calibration = match &args.load {
        Some(path) => load(path)?,
        None => {
            if !args.smoke && crate::host::machine::is_quick_build() {
                say("quire: built without --release: the library's own code is slower, the kernels are not");
            }
            measure(if args.smoke { Effort::SMOKE } else { Effort::FULL })?
        }
    };
    let features = CpuFeatures::detect();
    output::show(&show::text(&calibration, features))?;
    if let Some(json) = json {
        json.write(&saved::bytes(&calibration)?)?;
    }
    match save {
        Some(target) => target.write(&saved::bytes(&calibration)?),
        None if args.smoke || args.load.is_some() => Ok(()),
        None => {
            keep_here(&calibration, place().as_deref());
            Ok(())
        }
    }
}

/// Keeps what was measured, and says where. What was asked for is shown already, so it is no failure when it cannot be kept.
fn keep_here(calibration: &Calibration, place: Option<&Path>) {
    let Some(place) = place else {
        return say("quire: not kept, since there is no home for it: use --save FILE");
    };
    match kept::keep(calibration, place) {
        Ok(()) => say(format_args!("quire: kept in {}", quoted(place))),
        Err(error) => say(format_args!("quire: not kept: {error:#}; use --save FILE")),
    }
}

/// What was measured of this machine in this process.
static MEASURED: OnceLock<Calibration> = OnceLock::new();

/// The policy of this run in words, once it was measured.
pub fn words_of_this_run() -> String {
    MEASURED
        .get()
        .map(|measured| show::policy_text(&measured.policy(CpuFeatures::detect())))
        .unwrap_or_default()
}

/// The policy of this machine, measured the first time that it is asked for in this process.
///
/// # Errors
/// Too little memory to measure in.
pub fn of_this_run(effort: Effort) -> Result<(ClearPolicy, &'static Calibration)> {
    let calibration = match MEASURED.get() {
        Some(measured) => measured,
        None => {
            let measured = measure(effort)?;
            MEASURED.get_or_init(|| measured)
        }
    };
    Ok((calibration.policy(CpuFeatures::detect()), calibration))
}
