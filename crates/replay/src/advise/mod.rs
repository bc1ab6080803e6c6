//! `quire advise`: which folio sizes suit a program, by replaying it under each.
//!
//! ```text
//! recorded   records the command that advice is wanted on
//! baseline   the settings of this machine, and the commands that change them
//! prices     what Linux pays for a fault of each kind and size
//! case       one replay with its prices; the sets that are tried        mappings   which of them gain and which waste
//! objective  chooses a set by its figures alone                          verdict    all of that together
//! translations   what the TLBs miss under each set, by a second, instrumented run
//! reach          the TLB entries that referenced memory needs              accesses        what DAMON saw
//! khugepaged     what collapses and splits folios later                  fragmentation   where no large folios are free
//! hugetlb        huge pages of a pool                                     processes       the memory of each process
//! limit          which sets exceed `memory.high`                             code            program text in huge pages
//! shmem          folio sizes of shared memory                               defrag          what a fault does that finds no folio
//! ways       settings of allocators and runtimes                         words      numbers and names in prose
//! known      what is known, measured, assumed and unknown
//! text       for readers, in lines with labels (lines)                   json       for programs
//! ```

mod accesses;
mod baseline;
mod case;
mod code;
mod defrag;
mod fragmentation;
mod hugetlb;
mod json;
mod khugepaged;
mod known;
mod limit;
mod lines;
mod mappings;
mod objective;
mod prices;
mod processes;
mod reach;
mod recorded;
mod shmem;
mod text;
mod translations;
mod verdict;
mod ways;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::files::{self, Shard};
use crate::host::thp::selected;
use crate::output::{self, Format, parse_bytes, quoted, say};
use crate::record::{Sampling, Source, Subject};
use crate::replay::{FolioSet, Trial, parse_set};
use crate::settings::Places;
use crate::tlb;

pub(crate) use case::{asking, tried};
pub(crate) use khugepaged::{
    Asked, Collapses, parse as parse_khugepaged, predicted as beside_khugepaged, starts as khugepaged_starts,
};
pub(crate) use prices::Prices;
pub(crate) use shmem::{ShmemChange, predicted as with_shmem};
pub(crate) use verdict::advised;

use baseline::Settings;
use khugepaged::Khugepaged;
use objective::{Goal, MAX_WASTE};
use reach::Reach;
use translations::Translations;
use verdict::{AdviseRequest, Verdict};

/// The least interval of referenced bits where another source was wanted.
const REFERENCED: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  quire advise -- gcc -O2 -c big.c
  quire advise --pid 4711 --duration 60s --referenced
  quire advise --max-waste 2% --goal memory service.qtrace
  quire advise --format json -- sort big.txt >advice.json; quire report html advice.json";

/// Tell which folio sizes (transparent huge pages) suit a program, and the commands that set them.
///
/// The program is replayed under each size alone and a few together, as Linux would have faulted. Time in faults is predicted:
/// the number of faults of each kind, times what this machine's Linux takes for one (`quire calibrate --kernel`). docs/advise.md
/// says what each line means.
///
/// Among the sets of sizes that leave at most --max-waste of peak memory untouched, `throughput` takes the least time in
/// faults, `memory` the least memory, `latency` the shortest longest fault. Equals (within 5 % of the baseline's time, 0.1 % of
/// its memory) are told apart by time, then fewer sizes, memory, smaller sizes. A change is advised if it saves 1 % of the run time or
/// half of the faults; with `memory` 1 % of memory, with `latency` half of the longest fault.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["files", "command", "pid", "cgroup"]))]
pub struct Args {
    /// Traces that `quire record` wrote, or folders of them.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only share I of N of the traces, when N machines share them.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["command", "running"])]
    shard: Option<Shard>,
    /// The program to record first, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Record this process, with all its threads and the children that it starts, as root.
    #[arg(long, value_name = "PID", group = "running")]
    pid: Option<i32>,
    /// Record the processes of this control group (version 2), with those that join, as root.
    #[arg(long, value_name = "DIRECTORY", group = "running")]
    cgroup: Option<PathBuf>,
    /// How long to record what runs, for example 60s [default: until it ends, or Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "running")]
    duration: Option<Duration>,
    /// Keep the trace of what is recorded in FILE.
    #[arg(short, long, value_name = "FILE", conflicts_with = "files")]
    output: Option<PathBuf>,
    /// Run COMMAND a second time under valgrind, some hundred times slower, and count what the TLBs miss under each set of sizes;
    /// its end comes after TIME at the latest.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with_all = ["files", "running"],
        num_args = 0..=1, require_equals = true, default_missing_value = "10min")]
    instrumented: Option<Duration>,
    /// Sample meanwhile which memory is referenced: clear the accessed bits of the program's pages, and read after TIME at least
    /// how much of each mapping has them again; tells the TLB entries which that memory needs.
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "files", num_args = 0..=1,
        require_equals = true, default_missing_value = "100ms")]
    referenced: Option<Duration>,
    /// Sample meanwhile which memory is accessed, by the best source there is: DAMON of the kernel, as root, which tells regions
    /// and how often each is accessed and writes them into the trace; else as --referenced does, and a line says why.
    #[arg(long, conflicts_with_all = ["files", "referenced"])]
    accesses: bool,
    /// What counts.
    #[arg(long, value_enum, default_value_t)]
    goal: Goal,
    /// The share of peak memory that may be untouched.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value_t = MAX_WASTE)]
    max_waste: f64,
    /// Folio sizes to compare with: 4K to 2M, or several as 64K,2M [default: the settings of this machine].
    #[arg(long, value_name = "SIZES", value_parser = parse_set)]
    baseline: Option<FolioSet>,
    /// Prices of faults, as `quire calibrate --kernel --save FILE` wrote them [default: those that are kept of this machine;
    /// without them, recorded times and the cost of clearing].
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Settings under which khugepaged is replayed, as max_ptes_none=64,scan_sleep_millisecs=100, or `off` [default: those of this
    /// machine].
    #[arg(long, value_name = "NAME=N,...", value_parser = khugepaged::parse)]
    khugepaged: Option<khugepaged::Asked>,
    /// The share of free memory that is in pieces below 2 MiB when the program starts, or `machine` for that of this machine
    /// (/proc/buddyinfo) [default: all of it is in one piece].
    #[arg(long, value_name = "PERCENT", value_parser = fragmentation::parse)]
    fragmentation: Option<fragmentation::Asked>,
    /// The limit of the program's control group (`memory.high`): sets that keep below it are preferred.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_high: Option<u64>,
    /// Leave out sizes whose replay takes more than SIZE of the host's memory [default: what is available, within the limits of
    /// control groups].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_limit: Option<u64>,
    /// How the advice is written: as JSON, one object a line for each trace, with all figures.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    show: output::Show,
}

impl Args {
    /// What runs already.
    fn subject(&self) -> Option<Subject> {
        self.pid.map(Subject::Process).or(self.cgroup.clone().map(Subject::Cgroup))
    }

    /// How to learn what is accessed.
    fn source(&self) -> Source {
        let sampling = |interval| Sampling { interval, max_overhead: recorded::MOST_OVERHEAD };
        match self.referenced {
            Some(interval) => Source::Referenced(sampling(interval)),
            None if self.accesses => Source::Damon(Some(sampling(REFERENCED))),
            None => Source::Nothing,
        }
    }
}

/// Runs `quire advise`.
///
/// # Errors
/// A command that cannot be recorded, a trace that cannot be read, memory that is out, a file of prices that cannot be used.
pub fn run(args: &Args) -> Result<ExitCode> {
    let json = args.format.target(None)?;
    args.show.apply();
    if args.instrumented.is_some() {
        tlb::require()?;
    }
    let (subject, output) = (args.subject(), args.output.as_deref());
    let sampling = args.source();
    let recorded = match (subject, args.command.is_empty()) {
        (Some(subject), _) => Some(recorded::attach(subject, args.duration, output, sampling)?),
        (None, false) => Some(recorded::record(&args.command, output, sampling)?),
        (None, true) => None,
    };
    let exit_code = recorded.as_ref().and_then(|recorded| recorded.exit_code);
    let files = match &recorded {
        Some(recorded) => vec![recorded.path.to_path_buf()],
        None => files::chosen(&args.files, "qtrace", args.shard)?,
    };
    let places = Places::of_this_machine();
    if places.journal().exists() {
        say(
            "quire: another run has changed the settings of folios for a while; the advice starts from those",
        );
    }
    let settings = Settings::read(&places.settings);
    let shmem = Settings::of_shmem(&places.settings);
    let defrag = selected(&places.settings.join("defrag"));
    let request = AdviseRequest {
        goal: args.goal,
        most_waste: args.max_waste / 100.0,
        baseline: args.baseline,
        prices: args.prices.as_deref(),
        high: args.memory_high,
        khugepaged: Khugepaged::read(&places.settings, args.khugepaged.as_ref()),
        pools: &places.pools,
        shmem: &shmem,
        defrag: defrag.as_deref(),
    };
    let fragments = args.fragmentation.map(|asked| asked.fragments(&places.buddyinfo)).transpose()?;
    let mut lines = Vec::new();
    for path in &files {
        let name = || quoted(path).to_string();
        let trial = Trial::open(path, args.memory_limit).with_context(name)?.on(fragments);
        let mut verdict = Verdict::of(&trial, &settings, request).with_context(name)?;
        if let Some(time) = args.instrumented {
            match Translations::of(&args.command, &verdict, time) {
                Ok(translations) => verdict.translations = Some(translations),
                Err(error) => say(format_args!("quire: no TLB figures: {error:#}")),
            }
        }
        let referenced = recorded.as_ref().and_then(|recorded| recorded.referenced.as_ref());
        verdict.reach = match referenced {
            Some(referenced) => Some(Reach::of(referenced, recorded::MOST_OVERHEAD)),
            None => Reach::of_recording(path).with_context(name)?,
        };
        if json.is_some() {
            lines.extend(json::line((path, &trial), &verdict, (&settings, request), exit_code)?);
        } else {
            output::show(&text::section(&trial, &verdict, (&settings, request), exit_code))?;
        }
    }
    if let Some(json) = json {
        json.write(&lines)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a time that is not null.
fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("give a time".to_owned()) } else { Ok(time) }
}

/// Parses 0 to 100.
fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').trim().parse::<f64>();
    percent
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "give 0 to 100 per cent".to_owned())
}
