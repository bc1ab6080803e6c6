//! The lists of the first page: goals missed, cases lost, every goal.

use super::figures::{middle, plain};
use super::judge::{self, Measured, Run, Slower, Verdict};
use super::markdown::{Table, wrapped};
use super::page::link;
use crate::bench::experiment::Experiment;
use crate::bench::experiments;
use crate::bench::goal::{Bound, Goal, Over};
use crate::bench::table::{distinct, quantity, with_kernel};

/// How many experiments have a run whose code is today's, and which.
pub(super) fn with_todays_code(measured: &[Measured<'_>]) -> String {
    let is_todays = |run: &Run<'_>, of: &Experiment| judge::since(of, run.results) == judge::SAME;
    let with_it = measured.iter().filter(|one| one.runs.iter().any(|run| is_todays(run, one.experiment)));
    let names = distinct(with_it.map(|one| one.experiment.name));
    let all = experiments::ALL.len();
    let list: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let list = if list.is_empty() { String::new() } else { format!(": {}", list.join(", ")) };
    let text = format!("The code of today was measured in {} of {all} experiments{list}.", names.len());
    format!("{}\n", wrapped(&text, ""))
}

/// Figures to reach that a launch missed.
pub(super) fn missed(measured: &[Measured<'_>]) -> String {
    let header = [
        "experiment",
        "figure to reach",
        "to reach",
        "cases: measured (launches that reached it)",
        "run",
        "code",
    ];
    let mut tables = ByCode::new(&header);
    for one in measured {
        for goal in one.experiment.goals {
            let all = judge::verdicts(goal, one);
            let missed: Vec<&Verdict<'_>> =
                all.iter().filter(|verdict| verdict.reached() < verdict.launches.len()).collect();
            for of_run in missed.chunk_by(|first, second| first.run.number == second.run.number) {
                let case = |verdict: &&Verdict<'_>| {
                    let (reached, all) = (verdict.reached(), verdict.launches.len());
                    format!("`{}` {} ({reached} of {all})", verdict.case, value(goal, verdict))
                };
                tables.row(&[
                    link(one.experiment.name),
                    goal.what.to_owned(),
                    bound(goal, of_run[0].unit),
                    of_run.iter().map(case).collect::<Vec<_>>().join(", "),
                    of_run[0].run.number.to_string(),
                    judge::since(one.experiment, of_run[0].run.results).to_owned(),
                ]);
            }
        }
    }
    let text = tables.text("Every figure was reached in every launch.");
    format!("\n### Figures that a launch missed\n\n{text}")
}

/// Cases in which an arm of others is faster.
pub(super) fn slower(measured: &[Measured<'_>]) -> String {
    let header = [
        "experiment",
        "figure",
        "arm of Quire",
        "cases: times as slow as the fastest other arm (both figures; slower in launches)",
        "run",
        "code",
    ];
    let mut tables = ByCode::new(&header);
    for one in measured {
        let key =
            |slower: &Slower<'_>| (slower.run.number, slower.own.metric.clone(), slower.own.arm.clone());
        let mut all = judge::slower(one);
        all.sort_by_cached_key(key);
        for alike in all.chunk_by(|first, second| key(first) == key(second)) {
            let first = &alike[0];
            tables.row(&[
                link(one.experiment.name),
                first.own.metric.clone(),
                first.own.arm.clone(),
                alike.iter().map(slower_case).collect::<Vec<_>>().join(", "),
                first.run.number.to_string(),
                judge::since(one.experiment, first.run.results).to_owned(),
            ]);
        }
    }
    let text = tables.text("In no case.");
    format!("\n### Cases in which another arm is faster\n\n{text}")
}

/// Two tables with one header: the rows whose last cell says that the measured code is today's, and all others.
struct ByCode {
    todays: Table,
    others: Table,
    /// Whether the first table has a row, and the second.
    some: [bool; 2],
}

impl ByCode {
    fn new(header: &[&str]) -> Self {
        Self { todays: Table::new(header), others: Table::new(header), some: [false; 2] }
    }

    fn row(&mut self, cells: &[String]) {
        let is_todays = cells.last().is_some_and(|code| code == judge::SAME);
        self.some[usize::from(!is_todays)] = true;
        let table = if is_todays { &mut self.todays } else { &mut self.others };
        table.row(cells);
    }

    /// Today's code first; `none` in place of both tables if neither has a row.
    fn text(self, none: &str) -> String {
        let todays = format!("With the code of today:\n\n{}", self.todays.0);
        let others = format!("With other code, not measured since on that processor:\n\n{}", self.others.0);
        match self.some {
            [true, true] => format!("{todays}\n{others}"),
            [true, false] => todays,
            [false, true] => others,
            [false, false] => format!("{none}\n"),
        }
    }
}

fn slower_case(slower: &Slower<'_>) -> String {
    let (own, other) = (middle(slower.own), middle(slower.fastest));
    let fastest = with_kernel(&slower.fastest.arm, judge::kernel(slower.run.results));
    let (times, all) = slower.launches;
    format!("`{}` {:.2} ({own}, {fastest} {other}; {times} of {all})", slower.case, slower.ratio)
}

/// Every figure to reach, run by run.
pub(super) fn goals(measured: &[Measured<'_>]) -> String {
    let header = [
        "experiment",
        "figure to reach",
        "to reach",
        "run by run: the worst case (launches in which all cases reached it; code)",
    ];
    let mut table = Table::new(&header);
    for alike in measured.chunk_by(|first, second| first.experiment.name == second.experiment.name) {
        let experiment = alike[0].experiment;
        for goal in experiment.goals {
            let found: Vec<(String, String)> = alike.iter().filter_map(|one| judged(goal, one)).collect();
            let (bounds, values): (Vec<String>, Vec<String>) = found.into_iter().unzip();
            let bound = bounds.into_iter().next().unwrap_or_else(|| bound(goal, None));
            let values = if values.is_empty() { "not measured".to_owned() } else { values.join("; ") };
            table.row(&[&link(experiment.name), goal.what, &bound, &values]);
        }
    }
    table.0
}

/// The bound in the unit of the figure, and the worst case on one machine; `None` where it is not measured.
fn judged(goal: &Goal, one: &Measured<'_>) -> Option<(String, String)> {
    let verdicts = judge::verdicts(goal, one);
    let distance = |verdict: &Verdict<'_>| goal.bound.distance(verdict.median());
    let worst = verdicts.iter().max_by(|one, other| distance(one).total_cmp(&distance(other)))?;
    let (reached, launches) = judge::reached_in_all(&verdicts);
    let (number, code) = (worst.run.number, judge::since(one.experiment, worst.run.results));
    let value = value(goal, worst);
    let said = format!("run {number}: {value} `{}` ({reached} of {launches}; {code})", worst.case);
    Some((bound(goal, worst.unit), said))
}

/// The bound of a goal in words.
fn bound(goal: &Goal, unit: Option<&str>) -> String {
    let shown = |value: f64| unit.map_or_else(|| plain(value), |unit| quantity(value, unit));
    match (goal.bound, goal.over) {
        (Bound::AtMost(most), _) => format!("at most {}", shown(most)),
        (Bound::AtLeast(least), _) => format!("at least {}", shown(least)),
        (Bound::Times(times), _) => format!("{} times", plain(times)),
    }
}

/// The value of a case in words.
fn value(goal: &Goal, verdict: &Verdict<'_>) -> String {
    let value = verdict.median();
    match (goal.bound, goal.over, verdict.unit) {
        (Bound::Times(_), ..) => format!("{} times", plain(value)),
        (_, Over::Nothing, Some(unit)) => quantity(value, unit),
        _ => plain(value),
    }
}
