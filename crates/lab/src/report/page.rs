//! The page of measured figures.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::counts;
use super::judge::{self, Case, Measured, Run, Slower, Verdict};
use super::machines;
use super::markdown::{Table, wrapped};
use super::results::{Results, Series, text_of};
use crate::bench::crossings::Crossings;
use crate::bench::experiment::{Experiment, TIME};
use crate::bench::experiments;
use crate::bench::goal::{Bound, Goal, Over};
use crate::bench::table::{distinct, mark, quantity, with_kernel};

/// The two pages of measured figures.
pub struct Pages {
    /// The newest run of each experiment on each processor, and every figure to reach.
    pub newest: String,
    /// The runs before.
    pub older: String,
}

const WRITTEN: &str =
    "<!-- Written by `quire report tables`: change results, goals or notes, not this page. -->\n";

/// The pages that show `all`, with the notes in the folder `notes`: `head.md`, `older.md`, and one file for each
/// experiment.
///
/// # Errors
/// Notes that cannot be read.
pub fn text(all: &[Results], notes: &Path) -> Result<Pages> {
    let measured = judge::newest(all);
    Ok(Pages { newest: newest(&measured, notes)?, older: older(&measured, notes)? })
}

fn newest(measured: &[Measured<'_>], notes: &Path) -> Result<String> {
    let mut page = format!("# Measured\n\n{WRITTEN}");
    page += &note(notes, "head")?;
    page += "\n## Where is Quire slower, or misses a figure to reach?\n\n";
    page += &with_todays_code(measured);
    page += &missed(measured);
    page += &slower(measured);
    page += "\n## What was measured where?\n\n";
    page += &machines::tables(&runs_of_cases(measured));
    page += &not_measured(measured);
    page += "\n## Which figures were to be reached?\n\n";
    page += &goals(measured);
    let mut last = "";
    for one in measured {
        let name = one.experiment.name;
        if name != last {
            page += &heading(one.experiment);
            page += &note(notes, name)?;
        }
        last = name;
        page += &figures(&one.of_newest());
    }
    Ok(page)
}

fn older(measured: &[Measured<'_>], notes: &Path) -> Result<String> {
    let mut page = format!("# Measured before\n\n{WRITTEN}");
    page += &note(notes, "older")?;
    let older: Vec<Measured<'_>> = measured.iter().flat_map(Measured::of_older).collect();
    page += "\n## What was measured where?\n\n";
    page += &machines::tables(&runs_of_cases(&older));
    let mut last = "";
    for one in &older {
        let name = one.experiment.name;
        if name != last {
            let _ = write!(page, "\n## `quire bench {name}`\n");
        }
        last = name;
        page += &figures(one);
    }
    Ok(page)
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

fn heading(experiment: &Experiment) -> String {
    let question =
        format!("{} Expected before the first run: {}", experiment.question, experiment.expectation);
    let mut text = format!("\n## `quire bench {}`\n\n{}\n", experiment.name, wrapped(&question, ""));
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
    for one in experiment.notes {
        let _ = writeln!(text, "{}", wrapped(one, "- "));
    }
    text
}

/// How many experiments have a run whose code is today's, and which.
fn with_todays_code(measured: &[Measured<'_>]) -> String {
    let is_todays = |run: &Run<'_>, of: &Experiment| judge::since(of, run.results) == judge::SAME;
    let with_it = measured.iter().filter(|one| one.runs.iter().any(|run| is_todays(run, one.experiment)));
    let names = distinct(with_it.map(|one| one.experiment.name));
    let all = experiments::ALL.len();
    let list: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let list = if list.is_empty() { String::new() } else { format!(": {}", list.join(", ")) };
    let text = format!("The code of today was measured in {} of {all} experiments{list}.", names.len());
    format!("{}\n", wrapped(&text, ""))
}

fn missed(measured: &[Measured<'_>]) -> String {
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
                    one.experiment.name.to_owned(),
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

fn slower(measured: &[Measured<'_>]) -> String {
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
                one.experiment.name.to_owned(),
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
        let others = format!("With older code, not measured since:\n\n{}", self.others.0);
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

fn goals(measured: &[Measured<'_>]) -> String {
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
            table.row(&[experiment.name, goal.what, &bound, &values]);
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

/// A number with three significant digits.
fn plain(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The tables of one experiment on one machine: times, other metrics, what was skipped.
fn figures(measured: &Measured<'_>) -> String {
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
fn middle(series: &Series) -> String {
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
