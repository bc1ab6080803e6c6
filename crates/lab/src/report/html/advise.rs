//! Advice: the verdict, memory over time, faults against memory that is never touched, other policies, and the mappings.

use anyhow::{Result, bail};
use maud::{Markup, html};
use serde::Deserialize;

use super::memory::{self, Heat, Process};
use super::page::{MIB, Section, command, mebibytes};
use super::plot::{self, Mark, Named, thousands};
use super::policies::{self, Policies, SetCounts};
use crate::output::duration;

/// What `quire advise --format json` says of a program.
#[derive(Deserialize)]
pub(super) struct Advice {
    program: String,
    command: Vec<String>,
    wall_ns: u64,
    max_waste_percent: f64,
    chosen: Option<String>,
    sets: Vec<Set>,
    prices: Prices,
    #[serde(rename = "do")]
    commands: Vec<String>,
    undo: Vec<String>,
    asks: Option<String>,
    /// Of a second run under an instrumenting tool.
    #[serde(default)]
    tlb: Option<Accesses>,
    #[serde(default)]
    khugepaged: Option<Khugepaged>,
    #[serde(default)]
    heat: Option<Heat>,
    #[serde(flatten)]
    policies: Policies,
}

#[derive(Deserialize)]
struct Khugepaged {
    sets: Vec<Beside>,
}

/// A set of folio sizes without khugepaged and with it.
#[derive(Deserialize)]
struct Beside {
    folio: String,
    collapsed: u64,
    split: u64,
    without: Vec<Private>,
    with: Vec<Private>,
}

/// Private memory.
#[derive(Deserialize)]
struct Private {
    resident: u64,
    untouched: u64,
    large: u64,
}

#[derive(Deserialize)]
struct Accesses {
    accesses: u64,
}

/// A set of folio sizes; the baseline is the first.
#[derive(Deserialize)]
struct Set {
    folio: String,
    within_waste: bool,
    faults: u64,
    time_ns: f64,
    longest_ns: f64,
    #[serde(default)]
    fell_back: u64,
    #[serde(default)]
    above_high_bytes: Option<u64>,
    memory_bytes: u64,
    wasted_bytes: u64,
    mappings: Vec<Mapping>,
    timeline: Vec<Moment>,
    #[serde(default)]
    processes: Option<Vec<Process>>,
    #[serde(default)]
    tlb: Option<Misses>,
}

#[derive(Deserialize)]
struct Misses {
    walks: u64,
}

#[derive(Deserialize)]
struct Mapping {
    program: String,
    kind: String,
    file: Option<String>,
    address: u64,
    bytes: u64,
    faults: u64,
    time_ns: f64,
    wasted_bytes: u64,
}

#[derive(Deserialize)]
struct Moment {
    resident: u64,
}

#[derive(Deserialize)]
struct Prices {
    from: String,
}

/// Mappings that the page shows, those that save most first.
const MAPPINGS: usize = 12;

/// The section of one program.
///
/// # Errors
/// Advice without a set of sizes, or a plot that cannot be drawn.
pub(super) fn section(advice: &Advice) -> Result<Section> {
    let Some(baseline) = advice.sets.first() else { bail!("it has no set of folio sizes") };
    let chosen = advice.chosen.as_ref().and_then(|name| advice.sets.iter().find(|set| set.folio == *name));
    let of_sets: Vec<SetCounts<'_>> = advice.sets.iter().map(Set::for_policies).collect();
    let title = format!("Folio sizes for {}", advice.program);
    let body = html! {
        p.soft { code { (command(&advice.command)) } }
        (verdict(advice, baseline, chosen))
        div.cards {
            (over_time(advice, baseline, chosen)?)
            (policies(advice, baseline)?)
            @if let Some(processes) = &chosen.unwrap_or(baseline).processes {
                (memory::of_processes(processes, advice.wall_ns, &chosen.unwrap_or(baseline).folio)?)
            }
            @if let Some(heat) = &advice.heat { (memory::touches(heat, advice.wall_ns)?) }
            @for beside in advice.khugepaged.iter().flat_map(|khugepaged| &khugepaged.sets) {
                (collapsed(advice, beside)?)
            }
        }
        @if let Some(chosen) = chosen { (mappings(baseline, chosen)) }
        (policies::section(&advice.policies, &of_sets))
        (sets(advice))
    };
    Ok(Section { title, body })
}

fn verdict(advice: &Advice, baseline: &Set, chosen: Option<&Set>) -> Markup {
    let Some(chosen) = chosen else {
        return html! {
            div.ratio { "Change nothing" }
            p { "No set of folio sizes is worth a change: " (thousands(baseline.faults as f64)) " faults take "
                (duration(baseline.time_ns)) " of " (duration(advice.wall_ns as f64)) "." }
        };
    };
    let saved = baseline.time_ns - chosen.time_ns;
    html! {
        div.ratio { (chosen.folio) ": " (change(baseline.faults as f64, chosen.faults as f64)) " faults" }
        p {
            (thousands(baseline.faults as f64)) " → " (thousands(chosen.faults as f64)) " faults; time in faults "
            (duration(baseline.time_ns)) " → " (duration(chosen.time_ns)) ", "
            (format!("{:.1} %", saved / advice.wall_ns.max(1) as f64 * 100.0)) " of the run time; memory at the peak "
            (mebibytes(baseline.memory_bytes)) " → " (mebibytes(chosen.memory_bytes)) ", "
            (untouched(chosen)) " of it never touched. Counts are a replay's; the price of a fault is "
            (advice.prices.from) "."
        }
        @if let Some(walks) = walks(advice, baseline, chosen) { p { (walks) } }
        @if !advice.commands.is_empty() {
            p { "Do:" } pre { (advice.commands.join("\n")) }
            p { "Undo:" } pre { (advice.undo.join("\n")) }
        }
        @if let Some(asks) = &advice.asks { p { "Or for this program alone: " code { (asks) } } }
    }
}

/// What misses the TLBs, if it was counted.
fn walks(advice: &Advice, baseline: &Set, chosen: &Set) -> Option<String> {
    let accesses = advice.tlb.as_ref()?.accesses.max(1) as f64;
    let of = |set: &Set| Some(set.tlb.as_ref()?.walks as f64 / accesses * 1000.0);
    let (before, after) = (of(baseline)?, of(chosen)?);
    Some(format!("Of 1,000 accesses, {before:.2} → {after:.2} miss every TLB, by a model of this processor."))
}

fn over_time(advice: &Advice, baseline: &Set, chosen: Option<&Set>) -> Result<Markup> {
    let step = advice.wall_ns as f64 / 1e9 / baseline.timeline.len().max(1) as f64;
    let line = |set: &Set| -> Vec<(f64, f64)> {
        let resident = set.timeline.iter().map(|moment| moment.resident as f64 / MIB);
        (1..).map(|at| f64::from(at) * step).zip(resident).collect()
    };
    let mut series = vec![(Mark::Circle, line(baseline))];
    series.extend(chosen.map(|set| (Mark::Triangle, line(set))));
    let high = advice.policies.memory_high_bytes.map(|high| high as f64 / MIB);
    let end = advice.wall_ns as f64 / 1e9;
    series.extend(high.map(|high| (Mark::Cross, vec![(0.0, high), (end, high)])));
    let told = format!(
        "Resident memory over {:.2} s, at the most {} under {}{}.",
        advice.wall_ns as f64 / 1e9,
        mebibytes(baseline.memory_bytes),
        baseline.folio,
        chosen.map_or_else(String::new, |set| {
            format!(" and {} under {}", mebibytes(set.memory_bytes), set.folio)
        })
    );
    Ok(html! {
        div.card {
            h2 { "Resident memory over time" }
            div.soft {
                span.key.one { (baseline.folio) " (now)" }
                @if let Some(chosen) = chosen { span.key.two { (chosen.folio) } }
                @if high.is_some() { span.key.three { "memory.high" } }
            }
            (plot::lines(&series, ["seconds", "MiB"], &told)?)
        }
    })
}

/// What khugepaged changes under one set.
fn collapsed(advice: &Advice, beside: &Beside) -> Result<Markup> {
    let step = advice.wall_ns as f64 / 1e9 / beside.with.len().max(1) as f64;
    let line = |samples: &[Private]| -> Vec<(f64, f64)> {
        let share = |at: &Private| at.large as f64 * 100.0 / (at.resident - at.untouched).max(1) as f64;
        (0..).map(|at| (f64::from(at) + 0.5) * step).zip(samples.iter().map(share)).collect()
    };
    let untouched = |samples: &[Private]| samples.iter().map(|at| at.untouched).max().unwrap_or(0);
    let told = format!(
        "{} ranges of 2 MiB are collapsed and {} folios split; at the most {} → {} are never touched.",
        beside.collapsed,
        beside.split,
        mebibytes(untouched(&beside.without)),
        mebibytes(untouched(&beside.with)),
    );
    let series = [(Mark::Circle, line(&beside.without)), (Mark::Triangle, line(&beside.with))];
    Ok(html! {
        div.card {
            h2 { "Memory under 2M leaves, with folios of " (beside.folio) }
            div.soft { span.key.one { "faults alone" } span.key.two { "and khugepaged" } }
            (plot::lines(&series, ["seconds", "% of touched memory"], &told)?)
            p.soft { (told) }
        }
    })
}

fn policies(advice: &Advice, baseline: &Set) -> Result<Markup> {
    let mark = |set: &Set| match () {
        () if set.folio == baseline.folio => Mark::Circle,
        () if Some(&set.folio) == advice.chosen.as_ref() => Mark::Triangle,
        () => Mark::Cross,
    };
    let point = |set: &Set| Named {
        mark: mark(set),
        name: set.folio.clone(),
        at: (waste_percent(set), set.faults as f64),
    };
    let mut points: Vec<Named> = advice.sets.iter().map(point).collect();
    // The advised set is drawn last, over the others.
    points.sort_by_key(|point| (point.mark != Mark::Cross, point.mark == Mark::Triangle));
    let told = advice
        .sets
        .iter()
        .map(|set| format!("{}: {} faults, {} untouched.", set.folio, set.faults, untouched(set)));
    let told = told.collect::<Vec<_>>().join(" ");
    Ok(html! {
        div.card {
            h2 { "Faults against memory that is never touched" }
            div.soft {
                span.key.circle.one { "now" } span.key.triangle.two { "advised" } span.key.cross.three { "others" }
                "at most " (advice.max_waste_percent) " % may stay untouched"
            }
            (plot::named(&points, ["% of memory never touched", "faults"], &told)?)
        }
    })
}

fn mappings(baseline: &Set, chosen: &Set) -> Markup {
    let mut pairs: Vec<(&Mapping, &Mapping)> = baseline
        .mappings
        .iter()
        .filter_map(|before| {
            Some((before, chosen.mappings.iter().find(|after| after.is_the_same_as(before))?))
        })
        .collect();
    let saved = |pair: &(&Mapping, &Mapping)| pair.0.time_ns - pair.1.time_ns;
    pairs.sort_by(|one, other| saved(other).total_cmp(&saved(one)));
    html! {
        h2 { "Where the time is saved" }
        div.scroll { table {
            thead { tr {
                th { "mapping" } th { "size" } th { "faults now" } th { (chosen.folio) } th { "time saved" }
                th { "never touched" }
            } }
            tbody { @for pair in pairs.iter().take(MAPPINGS) { tr {
                td { (pair.0.name()) }
                td { (mebibytes(pair.0.bytes)) }
                td { (thousands(pair.0.faults as f64)) }
                td { (thousands(pair.1.faults as f64)) }
                td { (duration(saved(pair))) }
                td { (mebibytes(pair.1.wasted_bytes)) }
            } } }
        } }
    }
}

fn sets(advice: &Advice) -> Markup {
    html! {
        h2 { "Every set of sizes" }
        div.scroll { table {
            thead { tr {
                th { "folios" } th { "faults" } th { "time in faults" } th { "longest" } th { "memory" }
                th { "never touched" }
            } }
            tbody { @for set in &advice.sets { tr {
                td { (set.folio) }
                td { (thousands(set.faults as f64)) }
                td { (duration(set.time_ns)) }
                td { (duration(set.longest_ns)) }
                td { (mebibytes(set.memory_bytes)) }
                td.two[!set.within_waste] { (untouched(set)) }
            } } }
        } }
    }
}

impl Set {
    fn for_policies(&self) -> SetCounts<'_> {
        let above_high = self.above_high_bytes.unwrap_or(0);
        SetCounts { name: &self.folio, fell_back: self.fell_back, above_high }
    }
}

impl Mapping {
    fn is_the_same_as(&self, other: &Self) -> bool {
        (&self.program, &self.kind, &self.file, self.address)
            == (&other.program, &other.kind, &other.file, other.address)
    }

    fn name(&self) -> String {
        let place = self.file.clone().unwrap_or_else(|| format!("{:#x}", self.address));
        format!("{}: {} {place}", self.program, self.kind)
    }
}

/// By how many percent a figure changes.
fn change(from: f64, to: f64) -> String {
    let percent = (to - from) / from.max(1.0) * 100.0;
    format!("{percent:+.0} %").replace('-', "−")
}

fn waste_percent(set: &Set) -> f64 {
    set.wasted_bytes as f64 / set.memory_bytes.max(1) as f64 * 100.0
}

fn untouched(set: &Set) -> String {
    format!("{:.1} %", waste_percent(set))
}
