//! `quire calibrate`: measures the ways to clear and copy memory on this machine, and shows which one is chosen for what.

mod measure;
mod saved;
mod show;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use quire::arch::CpuFeatures;
use quire::clear::{Calibration, ClearPolicy};

pub use measure::{Effort, measure};
pub use saved::{Saved, load, save};

/// Measures the ways to clear and copy memory on this machine, and shows which one is chosen for what.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Few extents, little memory: shows that everything works, the figures say little.
    #[arg(long)]
    smoke: bool,
    /// Show what was saved in FILE instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "smoke"])]
    load: Option<PathBuf>,
    /// Save what was measured to FILE.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write what was measured as JSON to standard output, and everything else to standard error.
    #[arg(long)]
    json: bool,
}

/// Runs `quire calibrate`.
///
/// # Errors
/// A file that cannot be read or written, figures of another processor, or too little memory.
pub fn run(args: &Args) -> Result<()> {
    let mut text: Box<dyn Write> =
        if args.json { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
    if let Some(path) = &args.save {
        crate::bench::row::check_writable(path)?;
    }
    let calibration = match &args.load {
        Some(path) => load(path)?,
        None => {
            if !args.smoke && crate::bench::machine::is_debug_build() {
                eprintln!(
                    "quire: built without --release: the library's own code is slower, the kernels are not"
                );
            }
            measure(if args.smoke { Effort::SMOKE } else { Effort::FULL })?
        }
    };
    let features = CpuFeatures::detect();
    write!(text, "{}", show::text(&calibration, features))?;
    if args.json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &Saved::of(&calibration))?;
        writeln!(out)?;
    }
    args.save.as_deref().map_or(Ok(()), |path: &Path| save(&calibration, path))
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
