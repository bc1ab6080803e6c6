//! The table: rows that miss their figure first, the worst on top.

use std::fmt::Write;

use super::arm::{ARMS, Arm};
use super::rows::{Metric, ROWS, RowSpec};
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::goal::{Bound, Goal, Over};
use crate::bench::row::Row;
use crate::bench::table::quantity;
use crate::output::Sheet;

/// How Quire does in a row.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// The figure is missed, or without one Linux is better: by this factor.
    Missed(f64),
    /// This kernel cannot do it.
    Unable,
    /// The baseline cannot do it, or was not measured.
    Alone,
    /// The figure is reached, or without one Quire is no worse.
    Reached,
}

/// The table of `measured`, what the rows mean, and why figures are missing.
pub fn render(experiment: &Experiment, measured: &Measured) -> String {
    let mut text =
        format!("{}: {}\nexpected: {}\n", experiment.name, experiment.question, experiment.expectation);
    let _ = writeln!(text, "{}", sheet(experiment, &measured.rows));
    for (arm, about) in &measured.about {
        // An arm without rows had nothing to measure.
        let Some(row) = measured.rows.iter().find(|row| row.arm == *arm) else { continue };
        let kernel = row.params.get("kernel").and_then(serde_json::Value::as_str).unwrap_or("not there");
        let _ = writeln!(text, "{arm} ({kernel}): {about}");
    }
    for spec in ROWS.iter().filter(|spec| measured.rows.iter().any(|row| row.case == spec.name)) {
        let _ = writeln!(text, "{}: {}", spec.name, spec.what);
    }
    for note in experiment.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for (arm, reason, cases) in crate::bench::table::skipped(&measured.rows) {
        let _ = writeln!(text, "n/a: {arm} at {}: {reason}", cases.join(", "));
    }
    text
}

fn sheet(experiment: &Experiment, rows: &[Row]) -> Sheet {
    let mut header = vec!["row".to_owned(), "per".to_owned(), "to reach".to_owned(), "verdict".to_owned()];
    header.extend(ARMS.iter().rev().map(|arm| arm.name().to_owned()));
    let mut sheet = Sheet::new(&header, 1);
    sheet.prefer([3, 4, header.len() - 1, 2]);
    let mut lines: Vec<(f64, Vec<String>)> = ROWS
        .iter()
        .filter(|spec| rows.iter().any(|row| row.case == spec.name))
        .map(|spec| line(experiment, spec, rows))
        .collect();
    // A stable order: equal ones stay in the order of the program.
    lines.sort_by(|one, other| other.0.total_cmp(&one.0));
    lines.into_iter().for_each(|(_, cells)| sheet.add_row(cells));
    sheet
}

/// The cells of a row, and its place: larger is higher up.
fn line(experiment: &Experiment, spec: &RowSpec, rows: &[Row]) -> (f64, Vec<String>) {
    let goal = experiment.goals.iter().find(|goal| goal.is_for(spec.name));
    let verdict = verdict(spec, goal, rows);
    let (place, words) = match verdict {
        Verdict::Missed(by) => (1.0 + by, format!("{by:.2} times too much")),
        Verdict::Unable => (1.0, "n/a".to_owned()),
        Verdict::Alone => (0.0, "not compared".to_owned()),
        Verdict::Reached => (0.0, if goal.is_some() { "reached" } else { "no worse" }.to_owned()),
    };
    let mut cells = vec![
        spec.name.to_owned(),
        spec.per.to_owned(),
        goal.map(|goal| bound(spec, goal)).unwrap_or_default(),
        words,
    ];
    cells.extend(ARMS.iter().rev().map(|arm| figure(spec, *arm, rows)));
    (place, cells)
}

fn find<'a>(spec: &RowSpec, arm: &str, rows: &'a [Row]) -> Option<&'a Row> {
    rows.iter().find(|row| row.case == spec.name && row.arm == arm)
}

fn figure(spec: &RowSpec, arm: Arm, rows: &[Row]) -> String {
    match find(spec, arm.name(), rows) {
        Some(Row { median: Some(value), .. }) => amount(spec, *value),
        Some(_) => "n/a".to_owned(),
        None => String::new(),
    }
}

/// A value in the unit of the row; instructions without it.
fn amount(spec: &RowSpec, value: f64) -> String {
    match spec.metric {
        Metric::Instructions => short(value),
        metric => quantity(value, metric.names().1),
    }
}

/// A number of instructions.
fn short(value: f64) -> String {
    match value {
        large if large >= 1e6 => format!("{:.2} M", large / 1e6),
        small if small < 100.0 => format!("{small:.2}"),
        middle => format!("{middle:.0}"),
    }
}

fn verdict(spec: &RowSpec, goal: Option<&Goal>, rows: &[Row]) -> Verdict {
    let median = |arm: Arm| find(spec, arm.name(), rows).and_then(|row| row.median);
    let Some(own) = median(Arm::Quire) else { return Verdict::Unable };
    let base = median(ARMS[0]).filter(|base| *base > 0.0);
    let ratio = base.map(|base| own / base);
    let (bound, value) = match goal {
        Some(Goal { over: Over::Nothing, bound, .. }) => (*bound, Some(own)),
        Some(Goal { bound: Bound::Times(times), .. }) => (Bound::AtMost(1.0 / times), ratio),
        Some(Goal { bound, .. }) => (*bound, ratio),
        None => (Bound::AtMost(1.0), ratio),
    };
    match value {
        None => Verdict::Alone,
        Some(value) if bound.is_met_by(value) => Verdict::Reached,
        Some(value) => Verdict::Missed(bound.distance(value)),
    }
}

/// A figure to reach, in words.
fn bound(spec: &RowSpec, goal: &Goal) -> String {
    match (goal.over, goal.bound) {
        (Over::Nothing, Bound::AtMost(most)) => format!("at most {}", amount(spec, most)),
        (_, Bound::AtMost(most)) => format!("1/{:.0}", 1.0 / most),
        (_, Bound::Times(times)) => format!("{times:.0} times as fast"),
        (_, Bound::AtLeast(least)) => format!("at least {least}"),
    }
}

#[cfg(test)]
mod tests;
