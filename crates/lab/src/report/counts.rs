//! Exact counts on the page of measured figures, of experiments whose times mean little without them.

use super::judge::Measured;
use super::markdown::Table;
use super::results::Series;
use crate::bench::experiment::TIME;
use crate::bench::table::distinct;

/// What is cleared for the memory that a program gets.
const CLEARED: &[&str] = &["bytes_handed_out", "bytes_cleared", "bytes_cleared_ahead"];

/// Experiments, and which of their counts are shown.
const SHOWN: [(&str, &[&str]); 4] = [
    ("aged", &["frames_in_sequence"]),
    ("clear", CLEARED),
    ("first-touch", CLEARED),
    ("mlock-gigantic", CLEARED),
];

/// The counts of each case and arm, the largest of a repetition; empty where none are shown.
pub(super) fn table(measured: &Measured<'_>) -> String {
    let shown = SHOWN.iter().find(|(experiment, _)| *experiment == measured.experiment.name);
    let Some((_, names)) = shown else { return String::new() };
    let has = |series: &&Series| {
        series.metric == TIME.name && names.iter().any(|name| series.counters.contains_key(*name))
    };
    let all = measured.cases.iter().flat_map(|case| case.series().filter(has));
    let arms = distinct(all.map(|series| series.arm.as_str()));
    if arms.is_empty() {
        return String::new();
    }
    let mut header = vec!["case", "count"];
    header.extend(&arms);
    header.push("run");
    let mut table = Table::new(&header);
    for case in &measured.cases {
        let series: Vec<&Series> = case.series().filter(has).collect();
        let is_there = |name: &&&str| series.iter().any(|series| series.counters.contains_key(**name));
        for name in names.iter().filter(is_there) {
            let of = |arm: &&str| series.iter().find(|series| series.arm == **arm)?.counters.get(*name);
            let mut cells = vec![format!("`{}`", case.name), (*name).to_owned()];
            cells.extend(arms.iter().map(|arm| of(arm).map_or_else(String::new, |count| cell(name, *count))));
            cells.push(case.run.number.to_string());
            table.row(&cells);
        }
    }
    format!("\n{}", table.0)
}

fn cell(name: &str, count: u64) -> String {
    if name.starts_with("bytes") { format!("{} MiB", count >> 20) } else { count.to_string() }
}
