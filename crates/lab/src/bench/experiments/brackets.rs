//! How long does each verb keep a guest's memory from its virtual CPUs?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::brackets::{self, BRACKET, Brackets, EACH, HELD, LONGEST, P99, STALL, Verb};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured, Metric, TIME};
use crate::bench::goal::{Bound::AtMost, Goal};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `brackets`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "brackets",
    question: "For how long does a verb keep a secondary MMU from the memory, and how much of the verb's time is that?",
    expectation: "A bracket lasts for the flush of one other processor (3 to 10 us here) and for dropping \
     copies (50 ns each): some 30 us for 2 MiB in pieces of 4 KiB. Each call has one bracket, reclaim one \
     for each group of runs, a collapse in place none. munmap, mprotect and mremap take little longer than \
     their bracket; fork and a collapse by copy take much longer.",
    baseline: &["quire"],
    per: "call",
    notes: &[
        "`time` is the median of the calls of one round; `bracket`, `p99` and `longest` describe its brackets. \
         `each`: brackets of a call. `held`: the share of the calls' time with a bracket open. `stall`: the longest \
         access of the virtual CPU that waited for a leaf, faults on memory just given up included.",
        "A call covers 2 MiB in leaves of 4 KiB, all of which the second-stage tables map; `fork` covers all of the \
         memory, `reclaim` up to 512 pages, `migrate` and `memory-failure` one page. A virtual CPU loads and stores \
         all over the memory meanwhile (under `reclaim` it only loads).",
        "Linux has no arm: its brackets are inside the kernel and need a hypervisor. They enclose the whole \
         verb (mmu_notifier_invalidate_range_start to _end), so `time` is their length here. Published \
         (Houghton, v2, 2023): 10 to 30 ms for the start of a bracket, about 1 s until the end of a collapse \
         of 1 GiB.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[Goal::new(
        "no bracket when a huge page's parts are collapsed in place",
        "quire",
        &["collapse-parts"],
        AtMost(0.0),
    )
    .counter("brackets")],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/brackets/"]],
    run,
    appendix: Some(by_verb),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let (bytes, calls) = runner.scale.pick((4 << 20, 4), (64 << 20, 128));
    let touched_on = runner.cpus[runner.cpus.len().min(2) - 1];
    let cases: Vec<_> = Verb::ALL
        .into_iter()
        .map(|(name, verb)| {
            let params = [
                ("bytes", json!(bytes)),
                ("calls", json!(calls)),
                ("virtual_cpus", json!(1)),
                ("oversubscribed", json!(runner.cpus.len() < 2)),
            ];
            let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
            let spec = Brackets { verb, bytes, calls, touched_on, seed: runner.seed };
            Case { name: name.to_owned(), params, spec }
        })
        .collect();
    runner.measure(experiment, &cases, &mut brackets::all())
}

/// A row for each verb.
fn by_verb(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "verb",
        "call us",
        "brackets of a call",
        "bracket us",
        "p99 us",
        "longest us",
        "held %",
        "copies dropped by each",
        "longest stall us",
    ];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for row in rows.iter().filter(|row| row.metric == TIME.name) {
        let median = |metric: Metric| {
            let wanted = |other: &&Row| other.case == row.case && other.metric == metric.name;
            rows.iter().find(wanted).and_then(|row| row.median)
        };
        let shown =
            |metric, unit: f64| median(metric).map_or(String::new(), |value| format!("{:.2}", value / unit));
        let count = |name: &str| row.counters.get(name).copied().unwrap_or(0);
        let dropped = count("copies_dropped") as f64 / count("brackets").max(1) as f64;
        text.add_row(vec![
            row.case.clone(),
            shown(TIME, 1e3),
            shown(EACH, 1.0),
            shown(BRACKET, 1e3),
            shown(P99, 1e3),
            shown(LONGEST, 1e3),
            shown(HELD, 1.0),
            format!("{dropped:.1}"),
            shown(STALL, 1e3),
        ]);
    }
    Ok(format!("medians of all rounds\n{text}"))
}
