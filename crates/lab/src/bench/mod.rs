//! `quire bench`: the same work on several arms in one run, as a table and as JSON lines.

pub mod arms;
pub mod beside;
pub mod caches;
pub mod code;
pub mod counts;
pub mod crossings;
pub mod experiment;
pub mod experiments;
pub mod folio;
pub mod goal;
pub mod guest;
pub mod link_args;
pub mod linux;
pub mod memory;
pub mod metric;
pub mod ours;
pub mod price_args;
pub mod published;
pub mod row;
pub mod runner;
pub mod stats;
pub mod table;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::builder::PossibleValuesParser;
use serde_json::json;

use crossings::Crossings;
use experiment::{Experiment, Measured};
use runner::{Runner, Scale};

use crate::host::quiet::{Shares, Watch};
// Where `runner.rs` looks for it: were that file changed, further launches would not add up with the kept ones.
use crate::output as progress;
use crate::output::{self, Format, say};

/// Measure this library beside the running kernel and other crates, in one run on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Experiments to run [default: all but `guest`, which starts QEMU and fetches Debian's kernels].
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(experiments::ALL.iter().map(|each| each.name)))]
    names: Vec<String>,
    /// Use small parameters and few rounds. This shows that every arm works; the figures say little.
    #[arg(long)]
    smoke: bool,
    /// Run only the cases whose names contain TEXT.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write the results as JSON lines to FILE. With `-` they go to standard output, and everything else to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With `json`, the same as `--json -`.
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: Format,
    /// List the experiments and their questions.
    #[arg(long)]
    list: bool,
    /// Seed of the order in which the arms take turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measured rounds of each arm. More rounds tell arms apart that differ by little [default: 11, 31 of collapse-thp, or 1 with --smoke].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..))]
    rounds: Option<u16>,
    #[command(flatten)]
    show: output::Show,
    #[command(flatten)]
    link: link_args::LinkArgs,
    #[command(flatten)]
    price: price_args::PriceArgs,
}

const EXAMPLES: &str = "\
Examples:
  quire bench --list                             the experiments and their questions
  quire bench --smoke fault                      that every arm works, in seconds
  quire bench unmap --json unmap.json; quire report html unmap.json
  sudo quire bench hugetlb-pool --only 9000/fresh";

/// Runs `quire bench`.
///
/// # Errors
/// A result file that cannot be written, or arms that did different work.
pub fn run(args: &BenchArgs) -> Result<()> {
    args.show.apply();
    if args.list {
        return list(args.format);
    }
    let chosen = choose(&args.names);
    // Refuses an output that cannot be written before anything is measured.
    let json = args.format.target(args.json.as_deref())?;
    if !args.smoke && crate::host::machine::is_quick_build() {
        say("quire: built without --release: these figures are not to be compared with anything");
    }
    let mut rows = Vec::new();
    if !args.smoke && args.only.is_empty() && args.rounds.is_none() {
        let minutes: u64 = chosen.iter().map(|experiment| experiments::minutes(experiment.name)).sum();
        say(format_args!("quire: this takes about {minutes} minutes on two CPUs"));
    }
    for experiment in chosen {
        let scale = scale(experiment, args.smoke, args.rounds);
        let runner = Runner::new(scale, args.seed).only(&args.only).over(args.link);
        let runner = runner.priced(args.price.clone());
        let measured = measure(experiment, &runner)?;
        warn_of_noise(&measured.rows);
        let render = if experiment.name == GUEST { guest::table::render } else { table::render };
        output::show(&(render(experiment, &measured) + "\n"))?;
        if let Some(appendix) = experiment.appendix {
            output::show(&(appendix(&measured.rows)? + "\n"))?;
        }
        rows.extend(measured.rows);
    }
    if rows.is_empty() {
        bail!(
            "no case of these experiments has `{}` in its name: leave out --only to see them all",
            args.only
        );
    }
    match json {
        Some(json) => json.write(&row::lines(&rows)?),
        None => Ok(()),
    }
}

/// Shows the names of the experiments and their questions.
fn list(format: Format) -> Result<()> {
    for Experiment { name, question, .. } in experiments::ALL {
        let line = match format {
            Format::Text => format!("{name:<14} {question}\n"),
            Format::Json => format!("{}\n", json!({"name": name, "question": question})),
        };
        output::show(&line)?;
    }
    Ok(())
}

/// How much of an experiment is measured, with `rounds` if they are given.
pub fn scale(experiment: &Experiment, smoke: bool, rounds: Option<u16>) -> Scale {
    let scale = match experiment.name {
        _ if smoke => Scale::SMOKE,
        COLLAPSE_THP => Scale { rounds: experiments::collapse_thp::ROUNDS, ..Scale::FULL },
        _ => Scale::FULL,
    };
    rounds.map_or(scale, |rounds| Scale { rounds: rounds.into(), ..scale })
}

const COLLAPSE_THP: &str = experiments::collapse_thp::EXPERIMENT.name;

/// Measures an experiment, and notes how quiet the machine was, and the prices that only one side pays.
///
/// # Errors
/// Arms that did different work, or a missing tool.
pub fn measure(experiment: &Experiment, runner: &Runner) -> Result<Measured> {
    let watch = Watch::begin();
    let mut measured = (experiment.run)(experiment, runner)?;
    if let Some(shares) = watch.and_then(|watch| watch.shares()) {
        note_shares(&mut measured.rows, shares);
    }
    if crossings::is_one_sided(experiment.name)
        && let Some(here) = Crossings::here()
    {
        let here = serde_json::to_value(here)?;
        measured.rows.iter_mut().for_each(|row| row.machine[crossings::NAME] = here.clone());
    }
    Ok(measured)
}

/// Notes in each row how quiet the machine was, and says so if it was not.
fn note_shares(rows: &mut [row::Row], shares: Shares) {
    for row in rows {
        row.machine["cpu_of_others"] = shares.others.into();
        row.machine["cpu_stolen"] = shares.stolen.into();
    }
}

/// Says so if other work disturbed these figures.
pub fn warn_of_noise(rows: &[row::Row]) {
    let share = |name: &str| {
        let of = rows.iter().filter_map(|row| row.machine[name].as_f64());
        of.fold(0.0, f64::max)
    };
    let shares = Shares { others: share("cpu_of_others"), stolen: share("cpu_stolen") };
    if !shares.are_quiet() {
        say(format_args!(
            "quire: the machine was not quiet: other processes had {:.1} % of the CPU time, and the host took \
             {:.1} %; repeat this when nothing else runs",
            shares.others * 100.0,
            shares.stolen * 100.0
        ));
    }
}

/// The experiment that runs only when it is named, and that has a table of its own.
const GUEST: &str = experiments::guest::EXPERIMENT.name;

/// The experiments called `names`, in the order given, each once; all but `guest` when no name is given.
fn choose(names: &[String]) -> Vec<&'static Experiment> {
    if names.is_empty() {
        let unnamed = experiments::ALL.iter().copied().filter(|experiment| experiment.name != GUEST);
        return unnamed.collect();
    }
    let mut chosen: Vec<&'static Experiment> = Vec::new();
    for name in names {
        let named = experiments::ALL.iter().copied().filter(|experiment| experiment.name == name);
        let new: Vec<_> =
            named.filter(|&found| !chosen.iter().any(|&other| std::ptr::eq(other, found))).collect();
        chosen.extend(new);
    }
    chosen
}
