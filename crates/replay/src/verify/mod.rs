//! `quire verify`: runs programs under each folio size on the running kernel, beside what a replay predicts.
//!
//! ```text
//! conditions what else is set meanwhile: shared memory, pools of huge pages, khugepaged
//! from_advice all of this as `quire advise` recommends it
//! measure   the runs under each set of sizes
//! run_process a process of its own for each, so that this one's memory does not count as the program's
//! fault_time further runs, of which samples tell how long they are in faults
//! sampled    how many of them, and whose the samples are
//! unsampled  what samples do not see of a fault, and what they add to it
//! group     a control group for them, so that faults of other programs do not count
//! streams   what the program reads and writes meanwhile
//! run_off   further turns, until they tell whether another set is faster than what is advised
//! turns     by how much runs take longer than others of the same turns, and what chance may have made of it
//! priced    what the replays predict, time in faults included
//! processes the peak memory of each process, predicted beside measured
//! compare   predictions, medians, errors and spreads
//! text      the table
//! ```

mod compare;
mod conditions;
mod fault_time;
mod from_advice;
mod group;
mod measure;
mod priced;
mod processes;
mod run_off;
mod run_process;
mod sampled;
mod streams;
mod text;
mod turns;
mod unsampled;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::value_parser;

pub use run_process::{RunArgs, run_once};
pub use unsampled::{FaultsArgs, fault};

use crate::advise;
use crate::calibrate::REST;
use crate::files::{self, Shard};
use crate::output::{self, Format, quoted, say};
use crate::replay::{FolioSet, ReplayError, Trial, parse_set};
use crate::settings::{Places, Settings};
use crate::trace::Tier;
use compare::{ADVICE_PERCENT, Compared};
use conditions::{Conditions, PoolPages};
use measure::{Before, Measuring};
use priced::Priced;
use sampled::Plan;

const EXAMPLES: &str = "\
Examples:
  quire verify -- sort big.txt
  quire verify --sizes 4K,64K,2M --runs 3 -- gcc -O2 -c -o big.o big.c
  quire verify --advice advice.json
  quire verify --sizes 4K --shmem 64K -- ./program
  quire verify traces/*.qtrace";

/// Run programs on this machine's Linux under each folio size, beside what a replay predicts.
///
/// A program is a command, which is recorded first, or a trace, whose command is run again in this directory. Under
/// each size it runs several times, the sizes in turn, with this one size on `always` and all others on `never`. The
/// settings are put back afterwards. Needs root. docs/verify.md says what is compared.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Traces that `quire record` wrote, or folders of them.
    #[arg(value_name = "FILE", required_unless_present_any = ["command", "advice"], conflicts_with = "command")]
    files: Vec<PathBuf>,
    /// Only share I of N of the traces, when N machines share them.
    #[arg(long, value_name = "I/N", conflicts_with = "command")]
    shard: Option<Shard>,
    /// Folio sizes, 4K to 2M, or sets as 64K+2M, with commas between them [default: all that the kernel has].
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_set)]
    sizes: Vec<FolioSet>,
    /// Folio sizes of shared memory meanwhile, as 64K: `shmem_enabled` is `within_size` for these and `never`
    /// for others
    /// [default: as this machine has them].
    #[arg(long, value_name = "SIZES", value_parser = parse_set)]
    shmem: Option<FolioSet>,
    /// Huge pages that are free in the pools meanwhile, as 2M=16 or 2M=16,1G=1.
    #[arg(long, value_name = "SIZE=PAGES", value_parser = conditions::parse_pools)]
    pool: Option<PoolPages>,
    /// Settings of khugepaged meanwhile, as max_ptes_none=64,scan_sleep_millisecs=100. Linux starts it only
    /// under sizes with 2M
    /// [default: it is held].
    #[arg(long, value_name = "NAME=N,...", value_parser = advise::parse_khugepaged)]
    khugepaged: Option<advise::Asked>,
    /// Take sizes, --shmem, --pool and the command from what `quire advise --format json` recommends of one
    /// program; options and a command that are given go before.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "shard"])]
    advice: Option<PathBuf>,
    /// Runs under each size.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000), default_value_t = 5)]
    runs: u32,
    /// Further runs under each size of which `perf` samples the time in faults; 0: none [default: as many as --runs, and
    /// up to 200 of a program that is in faults for a short time only, which also end when they have taken five minutes and as
    /// long as all runs before].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1000))]
    sampled_runs: Option<u32>,
    /// The most further turns of what `quire advise` chooses and of the other sizes; at least 10, or 0: none. A size
    /// leaves them when they tell that the choice takes at most 2 % longer, and they end when they tell that it takes
    /// more [default: 160, which also end when they have taken a minute and as long as all runs before].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=10_000))]
    run_off: Option<u32>,
    /// A pause before each run, as `3s`. The host of a virtual machine may take back what has been free for some seconds:
    /// then a program that is started alone finds other memory than one that runs behind another.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    rest: Duration,
    /// A shell command before each run, not measured: it removes what the run before has written.
    #[arg(long, value_name = "SCRIPT")]
    prepare: Option<OsString>,
    /// Show on standard error what the program writes.
    #[arg(long)]
    show_output: bool,
    /// A table, or one JSON object a line for each program.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The program and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `quire verify`.
///
/// # Errors
/// A program that cannot be recorded or run, a trace that cannot be replayed, settings that this user may not change.
pub fn run(args: &Args) -> Result<()> {
    let advised;
    let args = match &args.advice {
        Some(file) => {
            advised = from_advice::with(args.clone(), file)?;
            &advised
        }
        None => args,
    };
    let conditions = args.conditions();
    conditions.check(&args.sizes)?;
    // Before anything runs or is replayed.
    let places = Places::of_this_machine();
    Settings::may_change(&places)?;
    if args.command.is_empty() {
        let files = files::chosen(&args.files, "qtrace", args.shard)?;
        return files.iter().try_for_each(|file| verify(args, file, &conditions));
    }
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("program.qtrace");
    let program = args.measuring(&args.command, None, None, &conditions);
    // A program that finds no huge page in the pool may end, or take other memory.
    let pools = conditions.pools().map(|_| Settings::acquire(&places)).transpose()?;
    if let Some(settings) = &pools {
        conditions.apply(settings, &places)?;
    }
    // All runs that are measured find their files in the page cache. So does the recorded one: its faults are prices, and a wait
    // for a disk is none.
    Measuring { shown: false, ..program }.warm()?;
    program.record(&trace)?;
    drop(pools);
    verify(args, &trace, &conditions)
}

impl Args {
    fn measuring<'a>(
        &'a self,
        command: &'a [OsString],
        sampled: Option<&'a Plan>,
        recorded: Option<&'a Path>,
        conditions: &'a Conditions,
    ) -> Measuring<'a> {
        let before = Before { script: self.prepare.as_deref(), rest: self.rest };
        let (shown, run_off) = (self.show_output, self.run_off);
        Measuring { command, before, shown, sampled, recorded, run_off, conditions }
    }

    fn conditions(&self) -> Conditions {
        let (shmem, pools) = (self.shmem, self.pool.unwrap_or_default());
        Conditions { shmem, pools, khugepaged: self.khugepaged.clone(), rests: self.rest >= REST }
    }
}

/// Predicts, measures and shows one program.
fn verify(args: &Args, trace: &Path, conditions: &Conditions) -> Result<()> {
    let held = Places::of_this_machine();
    let sizes = sizes(args, &held);
    let in_trace = |error: ReplayError| anyhow!("{}: {error}", quoted(trace));
    let trial = Trial::open(trace, None).map_err(in_trace)?;
    if trial.header().attached {
        bail!(
            "{}: its recording began when the program ran already; verify needs one from the program's start",
            quoted(trace)
        );
    }
    // The replay under single pages is what the others are compared with.
    let known =
        sizes.iter().fold(FolioSet::FRAMES, |all, size| all.with(size.unrequested()).with(size.requested()));
    let mut sets = advise::tried(FolioSet::FRAMES, known);
    let of_those_that_ask = if trial.asks() { advise::asking(known) } else { Vec::new() };
    let more: Vec<FolioSet> =
        sizes.iter().copied().chain(of_those_that_ask).filter(|set| !sets.contains(set)).collect();
    sets.extend(more);
    let replayed = priced::replay(&trial, &sets).map_err(in_trace)?;
    warn(trace, &trial);
    let command: Vec<OsString> = match args.command.is_empty() {
        true => trial.header().command.iter().map(OsString::from).collect(),
        false => args.command.clone(),
    };
    // Changed only while the programs run, and by a process without other threads until then.
    let priced = Priced::new(&trial, &replayed, conditions)?;
    let mut runs = sizes;
    if !runs.contains(&priced.advised.0) {
        runs.push(priced.advised.0);
    }
    let plan = plan(args, &priced, &runs);
    // The program of a file is not recorded again: it may be one of another machine.
    let recordings = tempfile::tempdir()?;
    let recorded = (!args.command.is_empty()).then_some(recordings.path());
    let program = args.measuring(&command, plan.as_ref(), recorded, conditions);
    let measured = program.measure(&held, &runs, args.runs, (priced.advised.0, ADVICE_PERCENT))?;
    let header = trial.header().clone();
    let priced = priced.with_recordings(&measured.recordings, trial, replayed)?;
    let compared = Compared::new(&header, &priced, &runs, &measured);
    match args.format {
        Format::Text => output::show(&(text::section(&compared) + "\n"))?,
        Format::Json => output::show(&(serde_json::to_string(&compared)? + "\n"))?,
    }
    Ok(())
}

/// The sampled runs under these sets; `None` where none are wanted, or cannot be had.
fn plan(args: &Args, priced: &Priced, sets: &[FolioSet]) -> Option<Plan> {
    if args.sampled_runs == Some(0) {
        return None;
    }
    if let Some(why) = fault_time::missing() {
        say(format_args!("quire: the time in faults is not measured: {why}"));
        return None;
    }
    Some(Plan::of(args.sampled_runs, args.runs, sets.iter().map(|set| priced.sampled(*set))))
}

/// The sizes that were asked for, or all that the kernel has, small to large.
fn sizes(args: &Args, places: &Places) -> Vec<FolioSet> {
    if !args.sizes.is_empty() {
        return args.sizes.clone();
    }
    let known = Settings::folio_sizes(places);
    FolioSet::each().filter(|set| set.kib().all(|kib| known.contains(&kib))).collect()
}

/// Says what the recording lacks for a comparison.
fn warn(trace: &Path, trial: &Trial) {
    let path = quoted(trace);
    if trial.lost() > 0 {
        say(format_args!(
            "quire: {path}: {} records were lost; record again with a larger --ring",
            trial.lost()
        ));
    }
    if trial.header().tier == Tier::User {
        say(format_args!("quire: {path} was recorded as an ordinary user, without faults from kernel mode"));
    }
}
