//! Predictions beside what the kernel did: both plots with their diagonal, then every figure.

use anyhow::Result;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::{MIB, Section, command, mebibytes};
use super::plot::{self, Mark, thousands};
use super::side_by_side::{self, Run, Subject};
use crate::output::duration;

/// What `quire verify --format json` says of a program.
#[derive(Deserialize)]
pub(super) struct Program {
    program: String,
    command: Vec<String>,
    runs: usize,
    sizes: Vec<Size>,
    /// Files of older commands lack it.
    #[serde(default)]
    advice: Option<Advice>,
    machine: serde_json::Value,
    commit: String,
}

#[derive(Deserialize)]
struct Size {
    folio: String,
    faults: Figure,
    peak_rss_bytes: Figure,
    /// Where it was measured.
    #[serde(default)]
    fault_ns: Option<Figure>,
    kernel_ns: Spread,
    run_ns: Spread,
}

/// What `advise` chooses, beside the fastest.
#[derive(Deserialize)]
struct Advice {
    folio: String,
    waste_percent: f64,
    best: String,
    longer_percent: f64,
    /// Further turns, if there were any.
    #[serde(default)]
    run_off: Option<RunOff>,
    verdict: Verdict,
}

/// What further turns say of each other set, the one that may be the fastest first.
#[derive(Deserialize)]
struct RunOff {
    against: Vec<Against>,
}

#[derive(Deserialize)]
struct Against {
    folio: String,
    turns: u64,
    longer_percent: f64,
    between_percent: (f64, f64),
}

#[derive(Deserialize)]
struct Figure {
    predicted: u64,
    measured: Spread,
    error_percent: f64,
    verdict: Verdict,
}

#[derive(Deserialize)]
struct Spread {
    median: u64,
    spread_percent: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Within,
    WithinSpread,
    WithinGrain,
    Missed,
}

impl Verdict {
    const fn mark(self) -> Mark {
        match self {
            Self::Within => Mark::Circle,
            Self::Missed => Mark::Triangle,
            Self::WithinSpread | Self::WithinGrain => Mark::Cross,
        }
    }
}

/// More missed predictions are folded.
const LINES_SHOWN: usize = 8;

/// The section of some programs.
///
/// # Errors
/// A plot that cannot be drawn.
pub(super) fn section(programs: &[Program]) -> Result<Section> {
    let faults = card("Page faults", programs, |size| Some(&size.faults), 1.0, thousands)?;
    let in_mib = |mib| format!("{mib:.0} MiB");
    let memory = card("Peak resident memory", programs, |size| Some(&size.peak_rss_bytes), MIB, in_mib)?;
    let in_ms = |ms| format!("{ms:.0} ms");
    let time = card("Time in faults", programs, |size| size.fault_ns.as_ref(), 1e6, in_ms)?;
    let lines: Vec<String> = programs.iter().flat_map(missed).collect();
    let body = html! {
        @if let Some(first) = programs.first() {
            p.soft {
                (first.machine["cpu"].as_str().unwrap_or("unknown")) ", Linux "
                (first.machine["kernel"].as_str().unwrap_or("unknown")) ", built from " (first.commit) "; medians of "
                (first.runs) " runs."
            }
        }
        p {
            span.key.circle.one { "as near as it should be (5 % of faults, 3 % of memory, 15 % of time)" }
            span.key.cross.three { "nearer than the runs are to each other, or than the kernel counts" }
            span.key.triangle.two { "missed" }
        }
        div.cards { (faults) (memory) (time) }
        @if !lines.is_empty() {
            details open[lines.len() <= LINES_SHOWN] {
                summary { (lines.len()) " predictions missed" }
                @for line in &lines { p.two { (line) } }
            }
        }
        @for program in programs { (table(program)) }
    };
    Ok(Section { title: "Predicted by a replay, measured on this kernel".to_owned(), body })
}

impl Program {
    /// What was measured, to be shown beside other runs.
    pub(super) fn run(&self, file: String) -> Run {
        let size = |size: &Size| side_by_side::Size {
            folio: size.folio.clone(),
            faults: size.faults.measured.median,
            peak_bytes: size.peak_rss_bytes.measured.median,
            fault_ns: size.fault_ns.as_ref().map(|time| time.measured.median as f64),
        };
        let (program, command) = (self.program.clone(), self.command.clone());
        let of = Subject { program, command, are: "measured" };
        Run { of, file, sizes: self.sizes.iter().map(size).collect() }
    }
}

/// What was predicted wrong.
fn missed(program: &Program) -> impl Iterator<Item = String> {
    let figures = |size: &Size, of, figure: &Figure| {
        let told = format!(
            "missed: {of} of {} under {}, {:+.1} %",
            program.program, size.folio, figure.error_percent
        );
        (figure.verdict == Verdict::Missed).then_some(told)
    };
    let of_size = move |size: &Size| {
        let time = size.fault_ns.as_ref().and_then(|time| figures(size, "time in faults", time));
        [figures(size, "faults", &size.faults), figures(size, "peak memory", &size.peak_rss_bytes), time]
    };
    program.sizes.iter().flat_map(of_size).flatten()
}

fn card(
    name: &str,
    programs: &[Program],
    of: fn(&Size) -> Option<&Figure>,
    unit: f64,
    shown: fn(f64) -> String,
) -> Result<Markup> {
    let figures: Vec<&Figure> = programs.iter().flat_map(|program| &program.sizes).filter_map(of).collect();
    if figures.is_empty() {
        return Ok(Markup::default());
    }
    let held = figures.iter().filter(|figure| figure.verdict != Verdict::Missed).count();
    // Those that missed are drawn on top.
    let mut points: Vec<(Mark, f64, f64)> = figures
        .iter()
        .map(|figure| {
            (figure.verdict.mark(), figure.measured.median as f64 / unit, figure.predicted as f64 / unit)
        })
        .collect();
    points.sort_by_key(|(mark, ..)| *mark == Mark::Triangle);
    let told = format!("{name}: {held} of {} predictions hold.", figures.len());
    let plot = plot::diagonal(&points, shown, ["measured", "predicted"], &told)?;
    Ok(html! {
        div.card {
            h2 { (name) }
            div class=(if held < figures.len() { "ratio loses" } else { "ratio" }) {
                (held) " of " (figures.len())
            }
            div.soft { "predictions hold, of each program under each folio size" }
            (plot)
        }
    })
}

fn table(program: &Program) -> Markup {
    html! {
        h2 { (command(&program.command)) }
        @if let Some(advice) = &program.advice {
            p.two[advice.verdict == Verdict::Missed] {
                "Advice: " (advice.folio) ", " (format!("{:.1} %", advice.waste_percent)) " untouched; "
                @if advice.folio == advice.best { "the fastest." }
                @else { (format!("runs {:.1} % longer than the fastest, {}.", advice.longer_percent, advice.best)) }
                @match advice.run_off.as_ref().and_then(|run_off| run_off.against.first()) {
                    Some(first) => { (further(first, advice.verdict)) }
                    None if advice.verdict == Verdict::WithinSpread => { " Turn by turn the runs differ too much to tell." }
                    None => {}
                }
            }
        }
        div.scroll { table {
            thead { tr {
                th { "folios" } th { "faults predicted" } th { "measured" } th { "error" } th { "spread" }
                th { "peak predicted" } th { "measured" } th { "error" } th { "in faults predicted" } th { "measured" } th { "error" }
                th { "in the kernel" } th { "run" }
            } }
            tbody { @for size in &program.sizes { tr {
                td { (size.folio) }
                (cells(&size.faults, |count| thousands(count as f64)))
                td { (format!("{:.1} %", size.faults.measured.spread_percent)) }
                (cells(&size.peak_rss_bytes, mebibytes))
                @if let Some(time) = &size.fault_ns { (cells(time, |ns| duration(ns as f64))) }
                @else { td { "–" } td { "–" } td { "–" } }
                td { (duration(size.kernel_ns.median as f64)) }
                td { (duration(size.run_ns.median as f64)) }
            } } }
        } }
    }
}

fn further(first: &Against, verdict: Verdict) -> String {
    let Against { folio, turns, longer_percent, between_percent: (least, most) } = first;
    let said = match verdict {
        Verdict::Missed => "it is slower",
        Verdict::WithinSpread => "these do not tell",
        Verdict::Within | Verdict::WithinGrain => "it is within 2 % of each",
    };
    format!(
        " In further turns of all, {folio} came nearest: after {turns} it takes {longer_percent:+.1} % longer, \
         {least:+.1} to {most:+.1} %: {said}."
    )
}

fn cells(figure: &Figure, shown: fn(u64) -> String) -> Markup {
    html! {
        td { (shown(figure.predicted)) }
        td { (shown(figure.measured.median)) }
        td.two[figure.verdict == Verdict::Missed] { (format!("{:+.1} %", figure.error_percent)) }
    }
}
