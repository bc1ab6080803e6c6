//! The pages of measured figures.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::figures::figures;
use super::judge::{self, Measured, Run};
use super::lists;
use super::machines::Machines;
use super::markdown::{Table, wrapped};
use super::results::{Results, text_of};
use crate::bench::experiment::Experiment;
use crate::bench::experiments;

/// The pages of measured figures.
pub struct Pages {
    /// What was missed, what was measured where, and every figure to reach.
    pub first: String,
    /// Names of experiments, and the page of each: its newest runs, and those before.
    pub of_experiments: Vec<(&'static str, String)>,
}

/// The folder beside the first page that has the others.
pub const FOLDER: &str = "measured";

const WRITTEN: &str =
    "<!-- Written by `quire report tables`: change results, goals or notes, not this page. -->\n";
const BEFORE: &str = "Kept runs that are not the newest on their processor, the newest of them first. Their code has \
    changed since, so they show what was reached then.";

/// The pages that show `all`, with the notes in the folder `notes`: `head.md`, and one file for each experiment.
///
/// # Errors
/// Notes that cannot be read.
pub fn text(all: &[Results], notes: &Path) -> Result<Pages> {
    let measured = judge::newest(all);
    let machines = Machines::of(&runs_of(&measured));
    let alike = measured.chunk_by(|first, second| first.experiment.name == second.experiment.name);
    let of_experiments = alike.map(|alike| Ok((alike[0].experiment.name, page_of(alike, &machines, notes)?)));
    let of_experiments = of_experiments.collect::<Result<_>>()?;
    Ok(Pages { first: first(&measured, &machines, notes)?, of_experiments })
}

fn first(measured: &[Measured<'_>], machines: &Machines, notes: &Path) -> Result<String> {
    let mut page = format!("# Measured\n\n{WRITTEN}");
    page += &note(notes, "head")?;
    page += "\n## Where is Quire slower, or misses a figure to reach?\n\n";
    page += &lists::with_todays_code(measured);
    page += &lists::missed(measured);
    page += &lists::slower(measured);
    page += "\n## Which figures were to be reached?\n\n";
    page += &lists::goals(measured);
    page += "\n## Which experiments are there?\n\n";
    page += &questions(measured);
    page += &not_measured(measured);
    page += "\n## What was measured where?\n\n";
    page += &machines.tables(&runs_of_cases(measured));
    Ok(page)
}

/// The page of one experiment, of which `alike` has the figures of each processor.
fn page_of(alike: &[Measured<'_>], machines: &Machines, notes: &Path) -> Result<String> {
    let experiment = alike[0].experiment;
    let name = experiment.name;
    let mut page = format!("# Measured: `quire bench {name}`\n\n{WRITTEN}");
    page += &about(experiment);
    page += &note(notes, name)?;
    page += "\n[Measured](../measured.md) says how to read the tables.\n\n## The newest runs\n";
    page += &with_runs(&alike.iter().map(Measured::of_newest).collect::<Vec<_>>(), machines);
    let older: Vec<Measured<'_>> = alike.iter().flat_map(Measured::of_older).collect();
    if !older.is_empty() {
        let _ = write!(page, "\n## The runs before\n\n{}\n", wrapped(BEFORE, ""));
        page += &with_runs(&older, machines);
    }
    Ok(page)
}

/// Figures, and below them the runs and the machines that they are of.
fn with_runs(measured: &[Measured<'_>], machines: &Machines) -> String {
    let all: String = measured.iter().map(figures).collect();
    format!("{all}\n{}", machines.tables(&runs_of_cases(measured)))
}

/// Every run, by number.
fn runs_of<'a>(measured: &[Measured<'a>]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = measured.iter().flat_map(|one| one.runs.iter().copied()).collect();
    runs.sort_by_key(|run| run.number);
    runs
}

/// The runs that have the cases, by number.
fn runs_of_cases<'a>(measured: &[Measured<'a>]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> =
        measured.iter().flat_map(|one| one.cases.iter().map(|case| case.run)).collect();
    runs.sort_by_key(|run| run.number);
    runs.dedup_by_key(|run| run.number);
    runs
}

/// A note after an empty line; empty if there is none.
fn note(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(format!("{name}.md"));
    if !path.exists() {
        return Ok(String::new());
    }
    Ok(format!("\n{}\n", text_of(&path)?.trim()))
}

fn about(experiment: &Experiment) -> String {
    let question =
        format!("{} Expected before the first run: {}", experiment.question, experiment.expectation);
    let mut text = format!("\n{}\n", wrapped(&question, ""));
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
    for one in experiment.notes {
        let _ = writeln!(text, "{}", wrapped(one, "- "));
    }
    text
}

/// The name of an experiment as the first page links to its own.
pub(super) fn link(name: &str) -> String {
    format!("[{name}]({FOLDER}/{name}.md)")
}

/// The question of each experiment that has a page.
fn questions(measured: &[Measured<'_>]) -> String {
    let mut table = Table::new(&["experiment", "question"]);
    for alike in measured.chunk_by(|first, second| first.experiment.name == second.experiment.name) {
        table.row(&[link(alike[0].experiment.name).as_str(), alike[0].experiment.question]);
    }
    table.0
}

/// The experiments of which no run is kept; empty if there is none.
fn not_measured(measured: &[Measured<'_>]) -> String {
    let is_kept = |name: &str| measured.iter().any(|one| one.experiment.name == name);
    let missing = experiments::ALL.iter().filter(|experiment| !is_kept(experiment.name));
    let names: Vec<String> = missing.map(|experiment| format!("`{}`", experiment.name)).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("\n{}\n", wrapped(&names.join(", "), "No run is kept of: "))
}
