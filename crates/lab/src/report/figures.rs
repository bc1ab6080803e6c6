//! The tables of one experiment on one machine.

use std::fmt::Write;

use super::counts;
use super::judge::{self, Case, Measured};
use super::markdown::{Table, wrapped};
use super::results::Series;
use crate::bench::crossings::Crossings;
use crate::bench::experiment::TIME;
use crate::bench::table::{distinct, mark, quantity, with_kernel};

/// The tables of one experiment on one machine: times, other metrics, what was skipped.
pub(super) fn figures(measured: &Measured<'_>) -> String {
    let mut text = String::new();
    let experiment = measured.experiment;
    if let Some(run) = measured.cases.first().map(|case| case.run) {
        let line = format!("Time for each {}, on {}.", experiment.per, judge::processor(run.results));
        let _ = write!(text, "\n{}\n\n", wrapped(&line, ""));
    }
    let arms = arms(measured, |metric| metric == TIME.name);
    text += &times(measured, &arms);
    text += &crossings(measured);
    text += &others(measured);
    text += &counts::table(measured);
    text += &skipped(measured);
    text
}

/// The arms that have one of the metrics, in the experiment's order.
fn arms<'a>(measured: &Measured<'a>, is_wanted: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let all = measured.cases.iter().flat_map(Case::series);
    distinct(
        all.filter(|series| is_wanted(&series.metric) && !series.launches.is_empty())
            .map(|series| series.arm.as_str()),
    )
}

fn times(measured: &Measured<'_>, arms: &[&str]) -> String {
    let experiment = measured.experiment;
    let baseline: Vec<&str> = experiment.baseline.iter().copied().filter(|arm| arms.contains(arm)).collect();
    let own = experiment.own.iter().copied().find(|arm| arms.contains(arm) && !baseline.contains(arm));
    let compared = own.filter(|_| !baseline.is_empty());
    let kernel = measured.cases.first().and_then(|case| judge::kernel(case.run.results));
    let named: Vec<String> = baseline.iter().map(|arm| with_kernel(arm, kernel)).collect();
    let faster = compared.map(|own| match named.as_slice() {
        [one] => format!("{one} / {own}"),
        several => format!("best of {} / {own}", several.join(", ")),
    });
    let mut header = vec!["case"];
    header.extend(arms);
    header.extend(faster.as_deref());
    header.extend(["run", "code"]);
    let mut table = Table::new(&header);
    for case in &measured.cases {
        let find = |arm: &str| case.series().find(|series| series.arm == arm && series.metric == TIME.name);
        let median = |arm: &str| find(arm).and_then(Series::of_all).map(|spread| spread.median);
        let mut cells = vec![format!("`{}`", case.name)];
        cells.extend(arms.iter().map(|arm| find(arm).map_or_else(String::new, spread)));
        if let Some(own) = compared {
            let best = baseline.iter().filter_map(|arm| median(arm)).min_by(f64::total_cmp);
            let ratio =
                best.zip(median(own)).filter(|(_, own)| *own > 0.0).map(|(best, own)| plain(best / own));
            cells.push(ratio.unwrap_or_default());
        }
        cells.push(case.run.number.to_string());
        cells.push(judge::since(experiment, case.run.results).to_owned());
        table.row(&cells);
    }
    table.0
}

/// The prices that only one side of a ratio pays, as the newest launch that has them says; empty where both sides pay.
fn crossings(measured: &Measured<'_>) -> String {
    let launches = measured.cases.iter().flat_map(|case| case.run.results.header.launches.iter().rev());
    let here = launches.filter_map(|launch| launch.crossings).next();
    let said = Crossings::said(measured.experiment.name, here);
    said.map(|said| format!("\n{}\n", wrapped(&said, ""))).unwrap_or_default()
}

/// Every other metric except cycles, which follow from the time.
fn others(measured: &Measured<'_>) -> String {
    let is_other = |metric: &str| metric != TIME.name && !metric.ends_with("cycles");
    let arms = arms(measured, is_other);
    if arms.is_empty() {
        return String::new();
    }
    let mut header = vec!["case", "figure"];
    header.extend(&arms);
    header.extend(["run", "code"]);
    let mut table = Table::new(&header);
    for case in &measured.cases {
        let metrics = case.series().map(|series| series.metric.as_str());
        for metric in distinct(metrics.filter(|metric| is_other(metric))) {
            let find =
                |arm: &&str| case.series().find(|series| series.arm == **arm && series.metric == metric);
            let mut cells = vec![format!("`{}`", case.name), metric.to_owned()];
            cells.extend(arms.iter().map(|arm| find(arm).map(with_deviation).unwrap_or_default()));
            cells.push(case.run.number.to_string());
            cells.push(judge::since(measured.experiment, case.run.results).to_owned());
            table.row(&cells);
        }
    }
    format!("\n{}", table.0)
}

fn skipped(measured: &Measured<'_>) -> String {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for case in &measured.cases {
        for series in case.series().filter(|series| series.launches.is_empty()) {
            let reason = series.skipped.as_deref().unwrap_or("no sample");
            match groups.iter_mut().find(|group| (group.0, group.1) == (series.arm.as_str(), reason)) {
                Some(group) => group.2.push(case.name),
                None => groups.push((&series.arm, reason, vec![case.name])),
            }
        }
    }
    let mut text = String::new();
    for (arm, reason, cases) in groups {
        let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        let line = format!("Skipped: `{arm}` at {}: {reason}", cases.join(", "));
        let _ = write!(text, "\n{}\n", wrapped(&line, ""));
    }
    text
}

/// The figure of all launches.
pub(super) fn middle(series: &Series) -> String {
    series.figure().map(|figure| quantity(figure, &series.unit)).unwrap_or_default()
}

/// The same, and the standard deviation of a launch's samples where it is known.
fn with_deviation(series: &Series) -> String {
    let share = series.deviation().map(|share| format!(" ± {:.1} %", 100.0 * share));
    middle(series) + &share.unwrap_or_default()
}

/// The median of all launches, and how far launches are apart, or samples where there is one launch.
fn spread(series: &Series) -> String {
    let shown = |value| quantity(value, &series.unit);
    let (Some(all), Some(range)) = (series.of_all(), series.range()) else { return String::new() };
    let kind = if range.of_samples { "samples " } else { "" };
    let mark = mark(range.least, all.median, range.most);
    format!("{} ({kind}{}..{}){mark}", shown(all.median), shown(range.least), shown(range.most))
}

/// A number with three significant digits.
pub(super) fn plain(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
