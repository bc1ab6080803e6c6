//! Advice: the verdict, memory over time, faults against memory that is never touched, other policies, and the mappings.

use anyhow::{Result, bail};
use maud::{Markup, html};
use serde::Deserialize;

use super::mappings::{self, Mapping, Plan};
use super::memory::{self, Heat, Process};
use super::page::{MIB, Section, command, mebibytes};
use super::plot::{self, Mark, Named, thousands};
use super::policies::{self, Policies, SetCounts};
use super::side_by_side::{self, Run, Subject};
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
    /// Folios for some mappings alone, where that is much better.
    #[serde(default)]
    plan: Option<Plan>,
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
struct Moment {
    resident: u64,
    #[serde(default)]
    page_tables: u64,
    #[serde(default)]
    wasted: u64,
}

#[derive(Deserialize)]
struct Prices {
    from: String,
}

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
            (parts_over_time(advice, chosen.unwrap_or(baseline))?)
            (policies(advice, baseline)?)
            @if let Some(processes) = &chosen.unwrap_or(baseline).processes {
                (memory::of_processes(processes, advice.wall_ns, &chosen.unwrap_or(baseline).folio)?)
            }
            @if let Some(heat) = &advice.heat { (memory::touches(heat, advice.wall_ns)?) }
            @for beside in advice.khugepaged.iter().flat_map(|khugepaged| &khugepaged.sets) {
                (collapsed(advice, beside)?)
            }
        }
        @if let Some(plan) = &advice.plan { (mappings::plan(plan, &baseline.mappings, advice.asks.as_deref())) }
        @if let Some(chosen) = chosen {
            (mappings::saved(&chosen.folio, &baseline.mappings, &chosen.mappings))
        }
        (policies::section(&advice.policies, &of_sets))
        (sets(advice))
    };
    Ok(Section { title, body })
}

impl Advice {
    /// What is predicted, to be shown beside other runs.
    pub(super) fn run(&self, file: String) -> Run {
        let size = |set: &Set| side_by_side::Size {
            folio: set.folio.clone(),
            faults: set.faults,
            peak_bytes: set.memory_bytes,
            fault_ns: Some(set.time_ns),
        };
        let (program, command) = (self.program.clone(), self.command.clone());
        let of = Subject { program, command, are: "predicted" };
        Run { of, file, sizes: self.sets.iter().map(size).collect() }
    }
}

/// What a change makes of the baseline.
struct Change<'a> {
    folio: &'a str,
    faults: u64,
    time_ns: f64,
    memory_bytes: u64,
    wasted_bytes: u64,
}

fn verdict(advice: &Advice, baseline: &Set, chosen: Option<&Set>) -> Markup {
    let all = chosen.map(|set| Change {
        folio: &set.folio,
        faults: set.faults,
        time_ns: set.time_ns,
        memory_bytes: set.memory_bytes,
        wasted_bytes: set.wasted_bytes,
    });
    let some = advice.plan.as_ref().map(|plan| Change {
        folio: &plan.folio,
        faults: plan.faults,
        time_ns: plan.time_ns,
        memory_bytes: plan.memory_bytes,
        wasted_bytes: plan.wasted_bytes,
    });
    html! {
        @match (&all, &some) {
            (Some(all), _) => { (changed(advice, baseline, all, "")) }
            (None, Some(some)) => { (changed(advice, baseline, some, " for some mappings")) }
            (None, None) => {
                div.ratio { "Change nothing" }
                p { "No set of folio sizes is worth a change: " (thousands(baseline.faults as f64)) " faults take "
                    (duration(baseline.time_ns)) " of " (duration(advice.wall_ns as f64)) "." }
            }
        }
        @match (&all, &some) {
            (Some(_), Some(some)) => p {
                "Better: " (some.folio) " for some mappings alone, listed below: "
                (effect(advice, baseline, some)) "."
            }
            (None, Some(_)) => p { "No set of sizes for all memory is worth a change within the waste." }
            _ => {}
        }
        @if let Some(walks) = chosen.and_then(|chosen| walks(advice, baseline, chosen)) { p { (walks) } }
        @if !advice.commands.is_empty() {
            p { "Do:" } pre { (advice.commands.join("\n")) }
            p { "Undo:" } pre { (advice.undo.join("\n")) }
        }
        @if let Some(asks) = advice.asks.as_ref().filter(|_| chosen.is_some()) {
            p { "Or for this program alone: " code { (asks) } }
        }
    }
}

fn changed(advice: &Advice, baseline: &Set, to: &Change<'_>, place: &str) -> Markup {
    html! {
        div.ratio { (to.folio) (place) ": " (change(baseline.faults as f64, to.faults as f64)) " faults" }
        p {
            (effect(advice, baseline, to)) ". Counts are a replay's; the price of a fault is " (advice.prices.from) "."
        }
    }
}

fn effect(advice: &Advice, baseline: &Set, to: &Change<'_>) -> String {
    let saved = baseline.time_ns - to.time_ns;
    format!(
        "{} → {} faults; time in faults {} → {}, {:.1} % of the run time; memory at the peak {} → {}, {:.1} % of it never \
         touched",
        thousands(baseline.faults as f64),
        thousands(to.faults as f64),
        duration(baseline.time_ns),
        duration(to.time_ns),
        saved / advice.wall_ns.max(1) as f64 * 100.0,
        mebibytes(baseline.memory_bytes),
        mebibytes(to.memory_bytes),
        share(to.wasted_bytes, to.memory_bytes),
    )
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

/// The parts of memory that hold nothing of the program, under one set.
fn parts_over_time(advice: &Advice, set: &Set) -> Result<Markup> {
    let step = advice.wall_ns as f64 / 1e9 / set.timeline.len().max(1) as f64;
    let line = |of: fn(&Moment) -> u64| -> Vec<(f64, f64)> {
        (1..).map(|at| f64::from(at) * step).zip(set.timeline.iter().map(|at| of(at) as f64 / MIB)).collect()
    };
    let most = |of: fn(&Moment) -> u64| mebibytes(set.timeline.iter().map(of).max().unwrap_or(0));
    let told = format!(
        "Under {} at the most {} were never touched, and page tables took {}.",
        set.folio,
        most(|at| at.wasted),
        most(|at| at.page_tables),
    );
    let series = [(Mark::Circle, line(|at| at.wasted)), (Mark::Triangle, line(|at| at.page_tables))];
    Ok(html! {
        div.card {
            h2 { "Untouched memory and page tables, with folios of " (set.folio) }
            div.soft { span.key.one { "never touched" } span.key.two { "page tables" } }
            (plot::lines(&series, ["seconds", "MiB"], &told)?)
            p.soft { (told) }
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

/// By how many percent a figure changes.
fn change(from: f64, to: f64) -> String {
    let percent = (to - from) / from.max(1.0) * 100.0;
    format!("{percent:+.0} %").replace('-', "−")
}

fn waste_percent(set: &Set) -> f64 {
    share(set.wasted_bytes, set.memory_bytes)
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64 * 100.0
}

fn untouched(set: &Set) -> String {
    format!("{:.1} %", waste_percent(set))
}
