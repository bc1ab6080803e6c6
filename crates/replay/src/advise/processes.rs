//! The memory of each process, where several were recorded.

use serde_json::{Value, json};

use super::case::Case;
use super::lines::labelled;
use super::verdict::Verdict;
use super::words::{count, size};
use crate::output::{quoted, sparkline};
use crate::replay::{Process, STEPS, Trial};

/// Processes that the text names.
const SHOWN: usize = 3;
/// Columns of a name.
const NAME: usize = 15;

/// The name of a process's program.
fn program<'t>(trial: &'t Trial, process: &Process) -> Option<&'t str> {
    trial.names().get(process.program?.0 as usize).map(String::as_str)
}

/// The processes with the highest peaks, for readers; nothing of a single one.
pub(super) fn text(trial: &Trial, verdict: &Verdict) -> String {
    let before = &verdict.baseline().figures.processes;
    if before.len() < 2 {
        return String::new();
    }
    let mut order: Vec<&Process> = before.iter().collect();
    order.sort_by_key(|process| std::cmp::Reverse(process.peak));
    let mut text = labelled(
        "processes:",
        &format!("{}, those with the highest peaks of resident memory:", count(before.len() as u64)),
    );
    let highest = order[0].peak as f64;
    for process in order.into_iter().take(SHOWN) {
        let name: String =
            quoted(program(trial, process).unwrap_or("?")).to_string().chars().take(NAME).collect();
        let over_time = sparkline(steps(process).into_iter().map(|bytes| bytes as f64), highest);
        text += &format!("  {name:<NAME$} {over_time} {}\n", size(process.peak));
        if let Some(after) = verdict.chosen().and_then(|case| same(case, process)) {
            let over_time = sparkline(steps(after).into_iter().map(|bytes| bytes as f64), highest);
            text += &format!("  {:<NAME$} {over_time} {}\n", "  after", size(after.peak));
            let both = |of: fn(&Process) -> &[u64]| format!("{} → {}", most(of(process)), most(of(after)));
            let (tables, wasted) = (both(|process| &process.page_tables), both(|process| &process.wasted));
            text += &format!("    page tables {tables}, untouched {wasted} at the most\n");
        }
    }
    text
}

/// The same process in another case.
fn same<'c>(case: &'c Case, process: &Process) -> Option<&'c Process> {
    let is = |other: &&Process| (other.pid, other.first_step) == (process.pid, process.first_step);
    case.figures.processes.iter().find(is)
}

/// The most of any step.
fn most(steps: &[u64]) -> String {
    size(steps.iter().copied().max().unwrap_or(0))
}

/// Resident bytes at the start of each step of the recorded time.
fn steps(process: &Process) -> Vec<u64> {
    let mut steps = vec![0; process.first_step as usize];
    steps.extend(&process.resident);
    steps.resize(STEPS as usize, 0);
    steps
}

/// For programs.
pub(super) fn json(trial: &Trial, case: &Case) -> Vec<Value> {
    let one = |process: &Process| {
        json!({
            "pid": process.pid,
            "program": program(trial, process),
            "peak_rss_bytes": process.peak,
            "first_step": process.first_step,
            "resident": process.resident,
            "page_tables": process.page_tables,
            "wasted": process.wasted,
        })
    };
    case.figures.processes.iter().map(one).collect()
}
