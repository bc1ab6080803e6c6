//! The table of an experiment: the median of every metric, the range of the times, and the ratio to the baseline.

use std::fmt::Write;

use super::crossings::Crossings;
use super::experiment::{Experiment, Measured, TIME};
use super::row::Row;
use super::runner::REPEATED;
use super::stats::Summary;
use crate::output::{Sheet, duration};

/// Renders the rows of one experiment, with its notes and each arm's text.
pub fn render(experiment: &Experiment, measured: &Measured) -> String {
    let rows = measured.rows.as_slice();
    let mut text =
        format!("{}: {}\nexpected: {}\n", experiment.name, experiment.question, experiment.expectation);
    for (metrics, cases) in kinds(rows) {
        let _ = writeln!(text, "{}", of_kind(experiment, rows, &metrics, &cases));
    }
    let _ = writeln!(
        text,
        "Values are medians, those of `worst-...` the largest. ratio = {} / this arm: above 1 is faster.",
        baseline_words(experiment, rows)
    );
    if text.contains(" !") {
        let _ = writeln!(text, "{MARKS}");
    }
    let here = rows.iter().find_map(|row| Crossings::of(&row.machine));
    if let Some(said) = Crossings::said(experiment.name, here) {
        let _ = writeln!(text, "{said}");
    }
    for (arm, about) in &measured.about {
        let _ = writeln!(text, "{arm}: {about}");
    }
    for note in experiment.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for (arm, reason, cases) in skipped(rows) {
        let _ = writeln!(text, "skipped: {arm} at {}: {reason}", cases.join(", "));
    }
    for (arm, case, count) in repeated(rows) {
        let _ = writeln!(text, "repeated: {arm} at {case}: {count} repetitions gave up and had a second try");
    }
    if rows.iter().any(|row| row.params.get("oversubscribed").is_some_and(|value| value == true)) {
        let _ = writeln!(
            text,
            "note: cases with more threads than CPUs are marked `oversubscribed` in the JSON lines."
        );
    }
    text
}

/// Cases with the same metrics stand in one table; the metrics and the cases of each.
fn kinds(rows: &[Row]) -> Vec<(Vec<&str>, Vec<&str>)> {
    let mut kinds: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    for case in distinct(rows.iter().map(|row| row.case.as_str())) {
        let metrics = distinct(rows.iter().filter(|row| row.case == case).map(|row| row.metric.as_str()));
        match kinds.iter_mut().find(|(known, _)| *known == metrics) {
            Some((_, cases)) => cases.push(case),
            None => kinds.push((metrics, vec![case])),
        }
    }
    kinds
}

fn of_kind(experiment: &Experiment, rows: &[Row], metrics: &[&str], cases: &[&str]) -> Sheet {
    let header = ["case", "arm", &format!("time per {}", experiment.per), "ratio", "min..max", "per page"];
    let others = metrics.iter().filter(|metric| **metric != TIME.name);
    let header: Vec<String> =
        header.iter().copied().chain(others.clone().copied()).map(str::to_owned).collect();
    let mut table = Sheet::new(&header, 2);
    for case in cases {
        let of_case: Vec<&Row> = rows.iter().filter(|row| row.case == *case).collect();
        let baseline = baseline(experiment, &of_case);
        for (nth, arm) in distinct(of_case.iter().map(|row| row.arm.as_str())).into_iter().enumerate() {
            let find =
                |metric: &&str| of_case.iter().copied().find(|row| row.arm == arm && row.metric == *metric);
            let mut cells = vec![if nth == 0 { (*case).to_owned() } else { String::new() }, arm.to_owned()];
            let time = find(&TIME.name);
            cells.push(time.map(cell).unwrap_or_default());
            cells.push(ratio(baseline, time.and_then(|row| row.median)));
            cells.push(time.map(range).unwrap_or_default());
            cells.push(time.and_then(per_page).unwrap_or_default());
            cells.extend(others.clone().map(|metric| find(metric).map(other_cell).unwrap_or_default()));
            table.add_row(cells);
        }
    }
    table
}

/// The values of `items` without repeats, in the order they first appear.
pub fn distinct<'a>(items: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// The smallest median among the baseline arms of a case.
fn baseline(experiment: &Experiment, of_case: &[&Row]) -> Option<f64> {
    let of_baseline = of_case
        .iter()
        .filter(|row| row.metric == TIME.name && experiment.baseline.contains(&row.arm.as_str()));
    of_baseline.filter_map(|row| row.median).min_by(f64::total_cmp)
}

fn baseline_words(experiment: &Experiment, rows: &[Row]) -> String {
    let named: Vec<String> =
        experiment.baseline.iter().map(|arm| with_kernel(arm, kernel_of(rows))).collect();
    match named.as_slice() {
        [one] => format!("time of {one}"),
        several => format!("time of the fastest of {}", several.join(", ")),
    }
}

fn kernel_of(rows: &[Row]) -> Option<&str> {
    rows.first().and_then(|row| row.machine["kernel"].as_str())
}

/// The heads of columns: ratios with the running kernel name its version.
pub fn heads(names: &[&str], rows: &[Row]) -> Vec<String> {
    let named = |arm: &str| with_kernel(arm, kernel_of(rows));
    let head = |name: &&str| match name.split_once(" / ") {
        Some((one, other)) => format!("{} / {}", named(one), named(other)),
        None => (*name).to_owned(),
    };
    names.iter().map(head).collect()
}

/// An arm of the running kernel with its version, such as `linux 6.18`; another arm's name as it is.
pub fn with_kernel(arm: &str, kernel: Option<&str>) -> String {
    let of_running = arm.strip_prefix("linux").filter(|rest| {
        let kind = rest.strip_prefix('-').unwrap_or(rest);
        !kind.starts_with(|first: char| first.is_ascii_digit())
    });
    match of_running.and(kernel) {
        Some(release) => format!("{arm} {}", version(release)),
        None => arm.to_owned(),
    }
}

/// The first two numbers of a kernel's release: `6.18` of `6.18.44-v1`.
pub fn version(release: &str) -> String {
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn ratio(baseline: Option<f64>, own: Option<f64>) -> String {
    match (baseline, own) {
        (Some(baseline), Some(own)) if own > 0.0 => {
            let ratio = baseline / own;
            let digits = if ratio < 0.1 { 4 } else { 2 };
            format!("{ratio:.digits$}")
        }
        _ => String::new(),
    }
}

fn cell(row: &Row) -> String {
    row.median.map_or_else(|| "skipped".to_owned(), |figure| quantity(figure, &row.unit))
}

/// A metric other than the time; it has no column per page.
fn other_cell(row: &Row) -> String {
    match per_page(row) {
        Some(share) => format!("{} {share}/page", cell(row)),
        None => cell(row),
    }
}

fn range(row: &Row) -> String {
    let shown = |value| quantity(value, &row.unit);
    let all = Summary::of(&row.samples);
    all.map(|all| {
        let mark = mark(all.min, all.median, all.max);
        format!("{}..{}{mark}", shown(all.min), shown(all.max))
    })
    .unwrap_or_default()
}

/// A value so many times the least of its kind is far above it: something else took the time.
const FAR: f64 = 3.0;

/// What [`MARKS`] says of values between `least` and `most`.
pub fn mark(least: f64, median: f64, most: f64) -> &'static str {
    let is_far = |value: f64| least > 0.0 && value > FAR * least;
    match (is_far(median), is_far(most)) {
        (true, _) => " !!",
        (false, true) => " !",
        (false, false) => "",
    }
}

/// The meaning of the marks behind a range.
const MARKS: &str = "! behind a range: the largest is more than three times the least; !!: so is the median, and the \
                     figure says little.";

/// A call that covers many pages is easier to judge by the page.
fn per_page(row: &Row) -> Option<String> {
    let pages = row.params.get("pages").and_then(serde_json::Value::as_f64)?;
    let summary = Summary::of(&row.samples).filter(|all| row.unit == TIME.unit && all.median >= 0.0)?;
    Some(duration(summary.median / pages))
}

/// A value in its unit; times in the one that suits them, other units as they are. A time below nothing is what is left
/// after an estimate that did not hold, and has no size.
pub fn quantity(value: f64, unit: &str) -> String {
    match value.abs() {
        _ if unit == TIME.unit && value < 0.0 => "negative".to_owned(),
        _ if unit == TIME.unit => duration(value),
        size if size >= 1e6 => format!("{:.2} M{unit}", value / 1e6),
        size if size >= 1e3 => format!("{value:.0} {unit}"),
        _ => format!("{value:.1} {unit}"),
    }
}

/// Arm, reason and cases of everything skipped; cases with the same reason together.
pub fn skipped(rows: &[Row]) -> Vec<(&str, &str, Vec<&str>)> {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(reason) = &row.skipped else { continue };
        match groups.iter_mut().find(|(arm, other, _)| *arm == row.arm && other == reason) {
            Some((_, _, cases)) => cases.push(&row.case),
            None => groups.push((&row.arm, reason, vec![&row.case])),
        }
    }
    groups
}

/// Arm, case and number of the repetitions that gave up once.
fn repeated(rows: &[Row]) -> impl Iterator<Item = (&str, &str, u64)> {
    let times = rows.iter().filter(|row| row.metric == TIME.name);
    times.filter_map(|row| Some((row.arm.as_str(), row.case.as_str(), *row.counters.get(REPEATED)?)))
}

#[cfg(test)]
mod tests;
