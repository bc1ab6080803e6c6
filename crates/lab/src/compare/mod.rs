//! `quire compare`: the five systems beside the kernel of this machine, other crates and published figures, in
//! one table.
//!
//! ```text
//! works     which work stands for which system, and what was published of it
//! lines     one line for each work, and every case in which another arm is faster
//! machine   this machine in a line
//! table     the lines as text
//! ```

mod lines;
mod machine;
mod table;
mod works;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use humantime::format_duration;

use crate::bench;
use crate::bench::row::{self, Row};
use crate::bench::runner::{Runner, Scale};
use crate::output::{self, Format, say};

pub(crate) use lines::{Line, Lost, lines, lost};
pub(crate) use machine::kernel_of;
pub(crate) use table::{factor, shown};
pub(crate) use works::{Group, groups};

use works::WORKS;

/// Measure Quire beside this machine's kernel, other crates and published figures, in one table.
///
/// Five systems are compared: pools of huge pages, one page mapped in pieces, per-CPU lists, the teardown of mappings, and
/// clearing. Each line is work that every column did in turn in one run. Some of the kernel's work needs root: it changes folio sizes
/// and pools, and puts them back. Without root these cells are empty, with the reason below the table.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One case for each work, three rounds: under two minutes on two CPUs. This is the default.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every case of the same experiments, eleven rounds: most of an hour.
    #[arg(long)]
    full: bool,
    /// Use small parameters and one round. This shows that everything works; the figures say little.
    #[arg(long, conflicts_with = "full")]
    smoke: bool,
    /// Only systems whose names contain TEXT: pools, pieces, lists, teardown, clearing.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write all figures as JSON lines to FILE, as `quire bench --json` does. With `-` they go to standard output, and
    /// everything else to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With `json`, the same as `--json -`.
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: Format,
    #[command(flatten)]
    show: output::Show,
}

const EXAMPLES: &str = "\
Examples:
  quire compare                    a table in two minutes
  quire compare --only teardown    unmapping alone
  quire compare --full --json all.json";

/// Three rounds after a warm-up.
const QUICK: Scale = Scale { smoke: false, warmups: 1, rounds: 3 };

/// Runs `quire compare`.
///
/// # Errors
/// A result file that cannot be written, a name that no system has, or arms that did different work.
pub fn run(args: &Args) -> Result<()> {
    args.show.apply();
    let json = args.format.target(args.json.as_deref())?;
    let scale = match (args.smoke, args.full) {
        (true, _) => Scale::SMOKE,
        (_, true) => Scale::FULL,
        _ => QUICK,
    };
    let groups = groups(&args.only)?;
    if !args.smoke && crate::host::machine::is_quick_build() {
        say("quire: built without --release: these figures are not to be compared with anything");
    }
    output::show(&format!("{}\n{}\n\n", machine::line(), announced(&groups, scale)))?;
    let began = Instant::now();
    let mut rows = Vec::new();
    for group in &groups {
        rows.extend(measured(group, scale, args.full)?);
    }
    let lines = lines(&groups, scale.smoke, &rows)?;
    output::show(&table::render(&lines, &lost(&groups, &rows), &rows))?;
    output::show(&format!("measured in {}\n", seconds(began.elapsed())))?;
    bench::warn_of_noise(&rows);
    match json {
        Some(json) => json.write(&row::lines(&rows)?),
        None => Ok(()),
    }
}

/// The figures of one experiment.
fn measured(group: &Group, scale: Scale, full: bool) -> Result<Vec<Row>> {
    let runner = Runner::new(scale, 1);
    let runner = if full { runner } else { runner.cases(group.cases(scale.smoke)) };
    Ok(bench::measure(group.experiment, &runner)?.rows)
}

/// What will run, and for about how long.
fn announced(groups: &[Group], scale: Scale) -> String {
    let works = groups.iter().map(|group| group.works.len()).sum::<usize>();
    let names: Vec<&str> = groups.iter().map(|group| group.experiment.name).collect();
    let rounds = scale.rounds;
    let (what, time) = if scale == Scale::FULL {
        let minutes: u64 = groups.iter().map(|group| group.minutes).sum();
        ("every case".to_owned(), format!("; about {minutes} min on two CPUs"))
    } else if scale.smoke {
        ("small cases".to_owned(), String::new())
    } else {
        let seconds: u64 = groups.iter().flat_map(|group| &group.works).map(|work| work.seconds).sum();
        (format!("{works} of {} cases", WORKS.len()), format!("; about {seconds} s on two CPUs"))
    };
    format!(
        "runs {what} of {}, each arm in turn, {rounds} round{}{time}",
        names.join(", "),
        if rounds == 1 { "" } else { "s" }
    )
}

fn seconds(time: Duration) -> impl std::fmt::Display {
    format_duration(Duration::from_secs(time.as_secs().max(1)))
}
