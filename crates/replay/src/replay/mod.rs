//! `quire replay`: runs the memory life of recorded programs on the library.
//!
//! ```text
//! survey     reads a trace to its end: is it whole, which files, what will it need   pages    sets of pages
//! limits     those that the program ran under
//! fragments  a machine whose free memory is in pieces
//! need       the estimate of memory and work, and what of it is allowed              host     what this host has
//! families   the address spaces that it counts, and what forked ones share
//! huge       huge pages of pools that the program maps itself
//! run        a machine, a manager, the events, and what is left at the end           files    the page cache, warm
//! replayer   applies events: lives (fork, exec, exit), calls (by plan and verb), faults; on processes and their CPUs
//! truncate   pages that programs take from files
//! zeroes     Linux's huge page of zeroes
//! background the same beside a collapser of small pages and a splitter of folios
//! check      the same in lockstep with the naive model        costs, memory    what it took in time and space
//! frames     sets of frames
//! gaps       how long threads work between two faults              recycled  frames that were freed a moment ago
//! report     as JSON lines                                    text     as tables
//! trial      many sets of sizes, for `advise` and `verify`      parts, timeline, each   faults and memory by mapping, over time, by process
//! heat       accesses or first touches by address and time   code    the pages of its code that a program uses
//! shmem      shared memory under other folio sizes, by a model of Linux's faults
//! ```

mod background;
mod calls;
mod check;
mod code;
mod costs;
mod each;
mod error;
mod families;
mod faults;
mod files;
mod fragments;
mod frames;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gaps;
mod heat;
mod host;
mod huge;
mod limits;
mod lives;
mod memory;
mod need;
mod pages;
mod parts;
mod plan;
mod policy;
mod processes;
mod progress;
mod recycled;
mod replayer;
mod report;
mod run;
mod shmem;
mod survey;
mod text;
mod timeline;
mod trial;
mod truncate;
mod verb;
mod zeroes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::value_parser;
use serde_json::Value;

pub use background::{BackgroundResult, Moment, Pace, Plan as BackgroundPlan, Recording};
pub(crate) use code::{Code, CodeMapping};
pub(crate) use each::Process;
pub use error::ReplayError;
pub(crate) use fragments::Fragments;
pub(crate) use heat::{Heat, Row as HeatRow};
pub(crate) use parts::{Part, PartKind};
pub use policy::FolioSet;
pub(crate) use policy::{order_name, parse_set};
pub(crate) use shmem::ShmemFigures;
pub(crate) use timeline::{STEPS, Sample};
pub(crate) use trial::{Figures, Trial};

use crate::calibrate::{self, Chosen};
use crate::host::machine;
use crate::output::{self, Format, quoted, say};
use costs::Stopwatch;
use need::Bounds;
use policy::{FolioChoice, parse_folio, parse_memory};
use progress::Progress;
use report::{Context, Report};
use run::{Outcome, Purpose, World};
use survey::Survey;

const EXAMPLES: &str = "\
Examples:
  quire replay gcc.qtrace
  quire replay --folio sweep gcc.qtrace
  quire replay --folio 64K,2M --memory 4G service.qtrace";

/// Replay recorded programs on Quire, and show what their memory calls and faults cost there.
///
/// Each process gets an address space. Recorded faults and calls run in recorded order, with real clearing and copying of
/// pages; their times stand beside the times on Linux. docs/replay-figures.md says what each figure means.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Traces that `quire record` wrote.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folio sizes of private memory: one of 4K to 2M, several as 64K,2M, `all`, or `sweep` for one line for each size. A fault takes
    /// the largest that fits, at last 4 KiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_folio, default_value = "4K")]
    folio: FolioChoice,
    /// Memory of the replaying machine, for example 2G [default: enough for the largest folio size].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<u64>,
    /// Refuse a replay that takes more than SIZE of the host's memory [default: what is available, within the limits of control
    /// groups].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory_limit: Option<u64>,
    /// Refuse a trace that brings in, copies or walks more than N pages, and 1024 more for each event [default: four times
    /// the allowed memory].
    #[arg(long, value_name = "N")]
    work_limit: Option<u64>,
    /// CPUs of the replaying machine [default: as many as the recording machine had].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=512))]
    cpus: Option<u32>,
    /// Replays of each trace; the fastest one is shown, since other work on the host only adds time. --check replays once.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000), default_value_t = 3)]
    rounds: u32,
    /// Compare each step with a naive model, access pages through modelled TLBs, and stop at the first difference.
    #[arg(long)]
    check: bool,
    /// Calibration for clearing and copying, as `quire calibrate --save FILE` wrote it [default: the one that `quire calibrate`
    /// kept for this machine; without it, CPUID and the cache sizes decide].
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Write the figures as JSON lines to FILE. With `-` they go to standard output, and everything else to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With `json`, the same as `--json -`.
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: Format,
    #[command(flatten)]
    show: output::Show,
}

const CANNOT_SHOW: &str = "cannot write the report; check where standard output goes";

impl Args {
    fn bounds(&self) -> Bounds {
        let memory = self.memory_limit.unwrap_or_else(host::available);
        Bounds { memory, work: self.work_limit.unwrap_or(memory / verb::PAGE * 4) }
    }

    /// Bytes of the machine for this folio size.
    fn memory_of(&self, survey: &Survey, size: FolioSet) -> u64 {
        self.memory.unwrap_or_else(|| survey.needed(size))
    }

    /// The folio sizes for which there is memory, and why others are left out.
    fn sizes(&self, survey: &Survey, bounds: Bounds) -> (Vec<FolioSet>, Vec<ReplayError>) {
        let asked: Vec<FolioSet> = match self.folio {
            FolioChoice::One(size) => vec![size],
            FolioChoice::Sweep => FolioSet::each().collect(),
        };
        let taken = |size: FolioSet| need::taken(self.memory_of(survey, size));
        let (fit, rest): (Vec<_>, Vec<_>) = asked.into_iter().partition(|&size| taken(size) <= bounds.memory);
        let refusal = |size: FolioSet| ReplayError::NoRoom {
            folio: size.name(),
            needed: need::shown(taken(size)),
            allowed: need::shown(bounds.memory),
        };
        (fit, rest.into_iter().map(refusal).collect())
    }
}

/// The exit code when no trace diverged, and a gap kept one from being checked to its end.
const UNJUDGED: u8 = 3;

/// Runs `quire replay`. The exit code is a failure when anything diverged or did not come back.
///
/// # Errors
/// A trace that cannot be read, a machine that the host refuses, memory that is out, a result file that cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let json = args.format.target(args.json.as_deref())?;
    args.show.apply();
    // All files are surveyed first, so that damage anywhere shows before anything is printed.
    let bounds = args.bounds();
    let surveys = args.files.iter().map(|path| survey(path, bounds)).collect::<Result<Vec<_>>>()?;
    let chosen = calibrate::choose(args.calibration.as_deref())?;
    if !args.check && machine::is_quick_build() {
        say("quire: built without --release: do not compare these times with any others");
    }
    let (watch, described) = (Stopwatch::new(), machine::describe());
    let mut lines = Vec::new();
    let (mut sound, mut judged) = (true, true);
    for (path, survey) in args.files.iter().zip(&surveys) {
        let (sizes, left_out) = args.sizes(survey, bounds);
        for error in left_out {
            say(format_args!("quire: {}: {error}", quoted(path)));
            sound = false;
        }
        match replay_file(args, path, survey, &sizes, (&watch, &described, &chosen)) {
            Ok(reports) => {
                for report in reports.iter().filter(|report| report.frames_leaked > 0) {
                    let (name, frames, size) = (quoted(path), report.frames_leaked, &report.folio);
                    say(format_args!(
                        "quire: {name}: {frames} frames did not come back at exit with folios of {size}; \
                         please report it with the trace"
                    ));
                    sound = false;
                }
                for report in reports.iter().filter(|_| json.is_some()) {
                    serde_json::to_writer(&mut lines, report)?;
                    lines.push(b'\n');
                }
            }
            // The other traces are still replayed.
            Err(error @ ReplayError::Divergence { .. }) => {
                say(format_args!("quire: {}: {error}", quoted(path)));
                sound = false;
            }
            // An error of the report, not of a file.
            Err(ReplayError::Output(error)) => return Err(anyhow::Error::new(error).context(CANNOT_SHOW)),
            Err(error @ ReplayError::Gap { .. }) => {
                say(format_args!("quire: {}: {error}", quoted(path)));
                judged = false;
            }
            Err(error) => return Err(in_file(path, &error)),
        }
    }
    if let Some(json) = json {
        json.write(&lines)?;
    }
    Ok(match (sound, judged) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(UNJUDGED),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn survey(path: &Path, bounds: Bounds) -> Result<Survey> {
    let mut progress = Progress::new(format!("reading {}", quoted(path)));
    Survey::of(path, bounds, &mut progress).map_err(|error| in_file(path, &error))
}

/// The error as one line; its text includes its causes.
fn in_file(path: &Path, error: &ReplayError) -> anyhow::Error {
    anyhow!("{}: {error}", quoted(path))
}

/// Replays one trace under the folio sizes that were asked for, and prints its section.
fn replay_file(
    args: &Args,
    path: &Path,
    survey: &Survey,
    sizes: &[FolioSet],
    (watch, machine, clear): (&Stopwatch, &Value, &Chosen),
) -> Result<Vec<Report>, ReplayError> {
    let memory_bytes = sizes.iter().map(|size| args.memory_of(survey, *size)).max().unwrap_or(0);
    let cpus = args.cpus.unwrap_or(survey.header.cpus).clamp(1, quire::limits::MAX_CPUS as u32) as usize;
    let (rounds, purpose) = if args.check { (1, Purpose::Check) } else { (args.rounds, Purpose::Time) };
    let context =
        Context { path, survey, watch, machine, memory_bytes, cpus, rounds, check: args.check, clear };
    let mut progress = Progress::new(quoted(path).to_string());
    progress.expect(survey.header.events * sizes.len() as u64 * u64::from(rounds));
    let mut world = None;
    let mut fastest: Vec<Option<Outcome>> = sizes.iter().map(|_| None).collect();
    // The sizes take turns, so that a disturbance of the machine affects all of them.
    for _ in 0..rounds {
        for (size, best) in sizes.iter().zip(&mut fastest) {
            progress.show(format!("folios of {}", size.name()));
            // With --check, a replay must not see the modelled TLBs and written files of the one before.
            let kept = world.take().filter(|_| !args.check);
            let world = world.insert(match kept {
                Some(world) => world,
                None => World::new(memory_bytes, cpus, purpose)?.clearing_by(clear.policy),
            });
            let outcome = world.replay(path, survey, *size, watch, &mut progress)?;
            // Frames that any of the rounds has lost are lost.
            let leaked = outcome.leaked.max(best.as_ref().map_or(0, |best| best.leaked));
            match best {
                Some(best) if best.quire_ns() <= outcome.quire_ns() => best.leaked = leaked,
                _ => *best = Some(Outcome { leaked, ..outcome }),
            }
        }
    }
    let reports: Vec<Report> =
        fastest.iter().flatten().map(|outcome| Report::new(&context, outcome)).collect();
    drop(progress);
    print(args.folio, &reports)?;
    Ok(reports)
}

fn print(choice: FolioChoice, reports: &[Report]) -> std::io::Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    let figures = match choice {
        FolioChoice::One(_) => text::section(first),
        FolioChoice::Sweep => text::sweep(reports),
    };
    output::show(&(text::heading(first) + &figures + "\n"))
}
