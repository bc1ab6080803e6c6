//! Memory by process, and by address and time.

use anyhow::Result;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::{MIB, mebibytes};
use super::plot::{self, Mark};

/// Where a map comes from.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Damon,
    /// Also of older lines, which lack this field.
    #[default]
    FirstTouches,
}

/// Accesses or first touches by address and time.
#[derive(Deserialize)]
pub(super) struct Heat {
    #[serde(default)]
    source: Source,
    pid: u32,
    program: Option<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    start: u64,
    end: u64,
    pages: Vec<u64>,
}

/// The resident memory of a process.
#[derive(Deserialize)]
pub(super) struct Process {
    pid: u32,
    program: Option<String>,
    peak_rss_bytes: u64,
    first_step: u64,
    resident: Vec<u64>,
    #[serde(default)]
    page_tables: Vec<u64>,
    #[serde(default)]
    wasted: Vec<u64>,
}

impl Process {
    fn name(&self) -> String {
        named(self.program.as_deref(), self.pid)
    }
}

fn named(program: Option<&str>, pid: u32) -> String {
    format!("{} ({pid})", program.unwrap_or("?"))
}

const PAGE: u64 = 4096;
/// Steps of the recorded time.
const STEPS: f64 = 48.0;
const MARKS: [(Mark, &str); 3] = [(Mark::Circle, "one"), (Mark::Triangle, "two"), (Mark::Cross, "three")];
/// Processes of the table, those with the highest peaks.
const SHOWN: usize = 6;

/// The processes with the highest peaks over time, under one set of sizes; nothing of a single one.
pub(super) fn of_processes(processes: &[Process], wall_ns: u64, folio: &str) -> Result<Markup> {
    if processes.len() < 2 {
        return Ok(html! {});
    }
    let mut order: Vec<&Process> = processes.iter().collect();
    order.sort_by_key(|process| std::cmp::Reverse(process.peak_rss_bytes));
    let step = wall_ns as f64 / 1e9 / STEPS;
    let line = |process: &Process| -> Vec<(f64, f64)> {
        let at = |place: usize| (process.first_step as f64 + place as f64) * step;
        process.resident.iter().enumerate().map(|(place, bytes)| (at(place), *bytes as f64 / MIB)).collect()
    };
    let shown = || order.iter().zip(MARKS);
    let series: Vec<_> = shown().map(|(process, (mark, _))| (mark, line(process))).collect();
    let told =
        shown().map(|(process, _)| format!("{}: {}.", process.name(), mebibytes(process.peak_rss_bytes)));
    let told = format!("Peaks of resident memory: {}", told.collect::<Vec<_>>().join(" "));
    Ok(html! {
        div.card {
            h2 { "Resident memory by process, with folios of " (folio) }
            div.soft { @for (process, (_, class)) in shown() { span class={ "key " (class) } { (process.name()) } } }
            (plot::lines(&series, ["seconds", "MiB"], &told)?)
            div.scroll { table {
                thead { tr {
                    th { "process" } th { "peak, as getrusage counts" } th { "most untouched" } th { "most page tables" }
                } }
                tbody { @for process in order.iter().take(SHOWN) { tr {
                    td { (process.name()) } td { (mebibytes(process.peak_rss_bytes)) }
                    td { (most(&process.wasted)) } td { (most(&process.page_tables)) }
                } } }
            } }
            @if order.len() > SHOWN { p.soft { (order.len() - SHOWN) " more processes have less." } }
        }
    })
}

/// The most of any step.
fn most(steps: &[u64]) -> String {
    mebibytes(steps.iter().copied().max().unwrap_or(0))
}

/// Where and when memory is accessed, or first touched.
pub(super) fn touches(heat: &Heat, wall_ns: u64) -> Result<Markup> {
    let row = |row: &Row| {
        (format!("{:x}", row.start >> 20), row.pages.iter().map(|pages| *pages as f64).collect::<Vec<_>>())
    };
    let rows: Vec<_> = heat.rows.iter().map(row).collect();
    let range = match (heat.rows.first(), heat.rows.last()) {
        (Some(first), Some(last)) => format!("from {:#x} to {:#x}", first.start, last.end),
        _ => "nowhere".to_owned(),
    };
    let name = named(heat.program.as_deref(), heat.pid);
    let in_step = |step| heat.rows.iter().filter_map(|row| row.pages.get(step)).sum::<u64>();
    let steps = || (0..STEPS as usize).map(in_step);
    let (title, legend, told, note) = match heat.source {
        Source::Damon => (
            "Accesses by address and time",
            "pages accessed from one look to the next, by DAMON",
            format!("{name} accesses {} at the most, {range}.", mebibytes(steps().max().unwrap_or(0) * PAGE)),
            "The darker, the more pages from one look to the next. DAMON looks at one page of each region, so which \
             pages of a region they are is unknown. Addresses that no look found accessed are left out.",
        ),
        Source::FirstTouches => (
            "First touches by address and time",
            "pages touched for the first time, by the recorded faults",
            format!("{name} touches {} pages for the first time, {range}.", steps().sum::<u64>()),
            "The darker, the more pages in one step. A recording without accesses shows the faults of first touches, \
             not the accesses that follow. Addresses that were never touched are left out.",
        ),
    };
    Ok(html! {
        div.card {
            h2 { (title) }
            div.soft { span.key.one { (legend) } }
            p.soft { (told) " " (note) }
            (plot::heat(&rows, wall_ns as f64 / 1e9, ["seconds", "address, MiB in hex, gaps left out"], &told)?)
        }
    })
}
