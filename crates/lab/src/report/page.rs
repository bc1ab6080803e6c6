//! The page of measured figures.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::judge::{self, Case, Measured, Run, Verdict};
use super::results::{Launch, Results, Series};
use crate::bench::experiment::{Experiment, TIME};
use crate::bench::experiments;
use crate::bench::goal::{Bound, Goal, Over};
use crate::bench::table::{distinct, quantity};
use crate::output::quoted;

/// Columns at which documents wrap.
const COLUMNS: usize = 100;

/// The page that shows `all`, with the notes in the folder `notes`: `head.md` and one file for each experiment.
///
/// # Errors
/// Notes that cannot be read.
pub fn text(all: &[Results], notes: &Path) -> Result<String> {
    let measured = judge::newest(all);
    let mut page = "# Measured\n\n<!-- Written by `quire report tables`: change results, goals or notes, not this page. -->\n".to_owned();
    page += &note(notes, "head")?;
    page += "\n## Where is Quire slower, or misses a figure to reach?\n";
    page += &missed(&measured);
    page += &slower(&measured);
    page += "\n## What was measured where?\n\n";
    page += &runs(&measured);
    page += &not_measured(&measured);
    page += "\n## Which figures were to be reached?\n\n";
    page += &goals(&measured);
    let mut last = "";
    for one in &measured {
        let name = one.experiment.name;
        if name != last {
            page += &heading(one.experiment);
            page += &note(notes, name)?;
        }
        last = name;
        page += &figures(one);
    }
    Ok(page)
}

/// A note after an empty line; empty if there is none.
fn note(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(format!("{name}.md"));
    if !path.exists() {
        return Ok(String::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", quoted(&path)))?;
    Ok(format!("\n{}\n", text.trim()))
}

/// A table in Markdown.
struct Table(String);

impl Table {
    fn new(header: &[&str]) -> Self {
        let mut table = Self(String::new());
        table.row(header);
        let _ = writeln!(table.0, "|{}", "---|".repeat(header.len()));
        table
    }

    fn row<S: AsRef<str>>(&mut self, cells: &[S]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
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

/// Wraps `text`; lines after the first are indented by the length of `before`, which starts the first.
fn wrapped(text: &str, before: &str) -> String {
    let indent = " ".repeat(before.len());
    let options =
        textwrap::Options::new(COLUMNS).initial_indent(before).subsequent_indent(&indent).break_words(false);
    let words: Vec<&str> = text.split_whitespace().collect();
    textwrap::fill(&words.join(" "), options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}

fn missed(measured: &[Measured<'_>]) -> String {
    let mut table = Table::new(&[
        "experiment",
        "figure to reach",
        "case",
        "to reach",
        "measured",
        "launches that reached it",
        "run",
        "code",
    ]);
    let mut some = false;
    for one in measured {
        for goal in one.experiment.goals {
            for verdict in judge::verdicts(goal, one) {
                if verdict.reached() == verdict.launches.len() {
                    continue;
                }
                some = true;
                table.row(&[
                    one.experiment.name.to_owned(),
                    goal.what.to_owned(),
                    format!("`{}`", verdict.case),
                    bound(goal, verdict.unit),
                    value(goal, &verdict),
                    format!("{} of {}", verdict.reached(), verdict.launches.len()),
                    verdict.run.number.to_string(),
                    judge::since(one.experiment, verdict.run.results).to_owned(),
                ]);
            }
        }
    }
    let text = if some { table.0 } else { "Every figure was reached in every launch.\n".to_owned() };
    format!("\n### Figures that a launch missed\n\n{text}")
}

fn slower(measured: &[Measured<'_>]) -> String {
    let header = [
        "experiment",
        "case",
        "figure",
        "Quire",
        "the fastest other arm",
        "times",
        "slower in launches",
        "run",
        "code",
    ];
    let mut table = Table::new(&header);
    let mut some = false;
    for one in measured {
        for slower in judge::slower(one) {
            some = true;
            let (own, other) = (slower.own, slower.fastest);
            table.row(&[
                one.experiment.name.to_owned(),
                format!("`{}`", slower.case),
                own.metric.clone(),
                format!("{} ({})", middle(own), own.arm),
                format!("{} ({})", middle(other), other.arm),
                format!("{:.2}", slower.ratio),
                format!("{} of {}", slower.launches.0, slower.launches.1),
                slower.run.number.to_string(),
                judge::since(one.experiment, slower.run.results).to_owned(),
            ]);
        }
    }
    let text = if some { table.0 } else { "In no case.\n".to_owned() };
    format!("\n### Cases in which another arm is faster\n\n{text}")
}

fn runs(measured: &[Measured<'_>]) -> String {
    let header = [
        "run",
        "experiment",
        "processor",
        "CPUs, memory",
        "kernel",
        "commit",
        "compiler",
        "day",
        "launches",
        "load",
        "others, stolen",
        "remark",
    ];
    let mut table = Table::new(&header);
    for one in measured {
        let mut runs: Vec<Run<'_>> = one.cases.iter().map(|case| case.run).collect();
        runs.sort_by_key(|run| run.number);
        runs.dedup_by_key(|run| run.number);
        for run in runs {
            table.row(&of_run(run));
        }
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

fn of_run(run: Run<'_>) -> [String; 12] {
    let header = &run.results.header;
    let word = |name: &str| header.machine.get(name).and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let number = |name: &str| header.machine.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let loads: Vec<f64> = header.launches.iter().filter_map(|launch| launch.load).collect();
    let load =
        match (loads.iter().copied().min_by(f64::total_cmp), loads.iter().copied().max_by(f64::total_cmp)) {
            (Some(least), Some(most)) => format!("{least:.1} to {most:.1}"),
            _ => "unknown".to_owned(),
        };
    let most =
        |share: fn(&Launch) -> Option<f64>| header.launches.iter().filter_map(share).max_by(f64::total_cmp);
    let quiet = match (most(|launch| launch.others), most(|launch| launch.stolen)) {
        (Some(others), Some(stolen)) => format!("{:.1} %, {:.1} %", others * 100.0, stolen * 100.0),
        _ => "not recorded".to_owned(),
    };
    let later = header.launches.iter().filter_map(|launch| launch.commit.as_deref());
    let commits = distinct(std::iter::once(header.commit.as_str()).chain(later));
    let remarks = distinct(header.launches.iter().filter_map(|launch| launch.remark.as_deref()));
    [
        run.number.to_string(),
        header.experiment.clone(),
        format!("{}{}", judge::processor(run.results), model(&header.machine)),
        format!("{}, {} GiB", number("cpus"), number("memory_gib")),
        word("kernel"),
        commits.join(", "),
        word("rustc"),
        header.taken.clone(),
        header.launches.len().to_string(),
        load,
        quiet,
        remarks.join("; "),
    ]
}

/// Family and model of the processor, and what the kernel does for each page; empty where it is not known.
fn model(machine: &Value) -> String {
    let number = |name: &str| machine.get(name).and_then(Value::as_u64);
    let holds = |name: &str| machine.get(name).and_then(Value::as_bool);
    let mut text = match (number("family"), number("model")) {
        (Some(family), Some(model)) => format!(", family {family}, model {model}"),
        _ => String::new(),
    };
    for (name, said) in [("init_on_alloc", "init_on_alloc"), ("memory_cgroup", "in a memory cgroup")] {
        if let Some(held) = holds(name) {
            text.push_str(if held { ", " } else { ", no " });
            text.push_str(said);
        }
    }
    text
}

fn goals(measured: &[Measured<'_>]) -> String {
    let header = [
        "experiment",
        "figure to reach",
        "to reach",
        "measured, the worst case",
        "launches that reached it",
        "run",
        "code",
    ];
    let mut table = Table::new(&header);
    for one in measured {
        for goal in one.experiment.goals {
            let verdicts = judge::verdicts(goal, one);
            let distance = |verdict: &Verdict<'_>| goal.bound.distance(verdict.median());
            let worst = verdicts.iter().max_by(|one, other| distance(one).total_cmp(&distance(other)));
            let Some(worst) = worst else {
                table.row(&[one.experiment.name, goal.what, &bound(goal, None), "not measured", "", "", ""]);
                continue;
            };
            let (reached, launches) = judge::reached_in_all(&verdicts);
            table.row(&[
                one.experiment.name.to_owned(),
                goal.what.to_owned(),
                bound(goal, worst.unit),
                format!("{} (`{}`)", value(goal, worst), worst.case),
                format!("{reached} of {launches}"),
                worst.run.number.to_string(),
                judge::since(one.experiment, worst.run.results).to_owned(),
            ]);
        }
    }
    table.0
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
    text += &others(measured);
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
    let faster = compared
        .map(|own| format!("{} / {own}", if baseline.len() == 1 { baseline[0] } else { "best baseline" }));
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
            cells.extend(arms.iter().map(|arm| find(arm).map(middle).unwrap_or_default()));
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

/// The median of all launches, and the smallest and the largest sample.
fn spread(series: &Series) -> String {
    let shown = |value| quantity(value, &series.unit);
    let all = series.of_all();
    all.map(|all| format!("{} ({}..{})", shown(all.median), shown(all.min), shown(all.max)))
        .unwrap_or_default()
}
