//! `quire calibrate`: measures the ways to clear and copy memory, and shows which of them the library chooses for what.

mod faults;
#[cfg(fuzzing)]
pub mod fuzzing;
mod host;
mod kept;
mod kernel;
mod measure;
mod recorder;
mod saved;
mod show;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Result;
use quire::arch::CpuFeatures;
use quire::clear::{Calibration, ClearPolicy};

pub(crate) use faults::{REST, bring_in_blocks, host_takes_free_memory, own_time, usual};
pub use kept::{Chosen, choose, clearing_ns_per_frame, place};
pub use kernel::{FaultSpread, Found, KernelPrices, kernel_place, kernel_prices};
pub use measure::{Effort, measure};
pub use saved::{Saved, load, save};
pub(crate) use walk::walk_ns;

use crate::output::{self, Format, Target, quoted, say};

/// Measure the ways to clear and copy memory on this machine, and show which of them the library chooses for what.
///
/// The measurement is kept in $XDG_CACHE_HOME/quire/calibration.json, or in ~/.cache, where `quire replay` finds it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Use few extents and little memory. This shows that everything works; the figures say little and are kept only by --save.
    #[arg(long)]
    smoke: bool,
    /// Show the measurement saved in FILE instead of taking one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "smoke"])]
    load: Option<PathBuf>,
    /// Measure what this machine's Linux takes for a fault instead, by folio size, what a walk after a TLB miss takes, and how
    /// much longer a fault takes in a recording, for `quire advise`. Takes a quarter of a minute. Changes the settings of
    /// transparent huge pages meanwhile and puts them back; needs root. Kept in /var/cache/quire/kernel-prices.json, for all users.
    #[arg(long, conflicts_with_all = ["load", "vectors_ns"])]
    kernel: bool,
    /// Save the measurement to FILE and nowhere else. With `-` it goes to standard output, and everything else to standard error.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the measurement as JSON to standard output, and everything else to standard error.
    #[arg(long)]
    json: bool,
    /// With `json`, the same as `--json`.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Show the choice for a kernel that takes NS nanoseconds to save and restore the vector registers, which a process does not pay. The measurement stays as it is.
    #[arg(long, value_name = "NS", default_value_t = 0)]
    vectors_ns: u32,
    #[command(flatten)]
    show: output::Show,
}

/// Runs `quire calibrate`.
///
/// # Errors
/// A file that cannot be read or written, figures of another processor, or too little memory.
pub fn run(args: &Args) -> Result<()> {
    let save = args.save.as_deref().map(Target::named).transpose()?;
    let json = args.format.target(args.json.then_some(Path::new("-")))?;
    args.show.apply();
    if args.kernel {
        return measure_kernel(args, save, json);
    }
    let calibration = match &args.load {
        Some(path) => load(path)?,
        None => {
            if !args.smoke && crate::host::machine::is_quick_build() {
                say(
                    "quire: built without --release: the library's own code is slower than in a release, the \
                 clearing kernels are not",
                );
            }
            measure(if args.smoke { Effort::SMOKE } else { Effort::FULL })?
        }
    };
    let features = CpuFeatures::detect();
    output::show(&show::text(&calibration.paying_for_vectors(args.vectors_ns), features))?;
    if let Some(json) = json {
        json.write(&saved::bytes(&calibration)?)?;
    }
    match save {
        Some(target) => target.write(&saved::bytes(&calibration)?),
        None if args.smoke || args.load.is_some() => Ok(()),
        None => {
            report_kept(place().as_deref(), |place| kept::keep(&calibration, place));
            Ok(())
        }
    }
}

/// Measures Linux's faults, and shows and keeps their prices.
fn measure_kernel(args: &Args, save: Option<Target>, json: Option<Target>) -> Result<()> {
    let prices = faults::measure(args.smoke)?;
    output::show(&show::prices(&prices))?;
    if let Some(json) = json {
        json.write(&prices.bytes()?)?;
    }
    match save {
        Some(target) => target.write(&prices.bytes()?)?,
        None if args.smoke => {}
        None => report_kept(Some(&kernel_place()), |place| prices.keep(place)),
    }
    Ok(())
}

/// Keeps a measurement and reports where. Its table was shown already, so a failure here is not an error.
fn report_kept(place: Option<&Path>, keep: impl FnOnce(&Path) -> Result<()>) {
    let Some(place) = place else {
        return say("quire: not kept, since neither XDG_CACHE_HOME nor HOME is set: use --save FILE");
    };
    match keep(place) {
        Ok(()) => say(format_args!("quire: kept in {}", quoted(place))),
        Err(error) => say(format_args!("quire: not kept: {error:#}; use --save FILE")),
    }
}

/// This process's measurement of the machine.
static MEASURED: OnceLock<Calibration> = OnceLock::new();

/// The policy of this run in words, empty before it was measured.
pub fn words_of_this_run() -> String {
    MEASURED
        .get()
        .map(|measured| show::policy_text(&measured.policy(CpuFeatures::detect())))
        .unwrap_or_default()
}

/// The policy of this machine, measured at the first call in this process.
///
/// # Errors
/// If there is too little memory to measure in.
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
