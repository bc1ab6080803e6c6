//! Where do the cycles of an allocation go?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::primitives::{self, Primitive, What};
use crate::bench::code;
use crate::bench::experiment::{CYCLES, Case, Experiment, Measured, Metric, TIME};
use crate::bench::published;
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `time-bench`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "time-bench",
    question: "What do the primitives of a page allocator cost on this machine?",
    expectation: "A lock and its unlock: some 20 cycles (one locked instruction). Turning interrupts off and \
     on: more. Pinning: a counter goes up and down. A pair of page calls in quire, pinning included: under 12 \
     cycles, less than the lock alone.",
    baseline: &["irq-off"],
    per: "call",
    notes: &[
        "Each primitive is repeated many times in a row; the time includes the loop around it (`for_loop`), as in the \
         published figures.",
        "A process cannot disable interrupts: the hosted machine executes those instructions of a kernel \
         that a process may execute, and otherwise sets a flag; see its documentation. There is no arm \
         `linux`, since a process cannot reach a kernel's primitives.",
        "Where a kernel knows that interrupts are on, it executes `cli` and `sti` alone: the rows \
         `spin_lock_unlock_irq`, `simple_irq_disable_before_lock` and `local_IRQ_disable_enable` have the flag in \
         their place, and neither `pushf` nor `popf`. Quire's locks know no interrupts, so a row whose published \
         loop turns them off before the lock runs the code of the row whose loop does both by one call.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/primitives/"]],
    run,
    appendix: Some(beside_published),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let count = runner.scale.pick(5_000, 500_000);
    let cases: Vec<Case<Primitive>> = What::ALL
        .iter()
        .map(|&(what, name)| Case {
            name: name.to_owned(),
            params: [("count".to_owned(), json!(count))].into_iter().collect(),
            spec: Primitive { what, count },
        })
        .collect();
    runner.measure(experiment, &cases, &mut primitives::all())
}

/// Each primitive here and as published.
fn beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let figures: Vec<_> = published::figures("pcp")?
        .into_iter()
        .filter(|figure| figure.source.contains("time_bench"))
        .collect();
    let here = table::distinct(rows.iter().map(|row| row.case.as_str()));
    let there = table::distinct(figures.iter().map(|figure| figure.case.as_str()));
    let header = ["primitive", "here, ns", "here, cycles", "published, ns", "published, cycles"];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for case in table::distinct(here.into_iter().chain(there)) {
        let measured = |metric: Metric| {
            let wanted = |row: &&Row| row.case == case && row.arm == "quire" && row.metric == metric.name;
            rows.iter().find(wanted).and_then(|row| row.median)
        };
        let value = |unit: &str| {
            let found = figures.iter().find(|figure| figure.case == case && figure.unit == unit);
            found.map(|figure| figure.value.clone()).unwrap_or_default()
        };
        let shown = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let cells = [shown(measured(TIME)), shown(measured(CYCLES)), value("ns"), value("cycles")];
        text.add_row(std::iter::once(case.to_owned()).chain(cells).collect::<Vec<_>>());
    }
    let machine = figures.first().map(|figure| format!("{} on {}", figure.source, figure.machine));
    Ok(format!("published: {}\n{text}", machine.unwrap_or_default()))
}
