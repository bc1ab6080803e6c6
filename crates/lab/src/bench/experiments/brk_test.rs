//! What does a call of brk cost?

use crate::output::Sheet;
use serde_json::{Value, json};

use crate::bench::arms::heap::{self, Heap};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured, RATE};
use crate::bench::published;
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::stats::mean_and_deviation;

/// The experiment `brk-test`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "brk-test",
    question: "How many times a second can a program move the end of its heap, without touching it?",
    expectation: "linux: one to four million calls a second (3.8 million in 2017, as published), the system call included. \
                  quire: several times that.",
    baseline: &["linux"],
    per: "call",
    notes: &["The loop of AIM9's brk_test, written anew: the heap grows by steps and shrinks by steps."],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/heap/"]],
    run,
    appendix: Some(appendix),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let loops = runner.scale.pick(4, 512);
    let steps = [("step-4KiB", 4 << 10), ("step-256KiB", 256 << 10)];
    let heap = |step| Heap { bytes: 16 * step, step, touch: false, loops };
    let cases = steps.map(|(name, step)| case(name, heap(step)));
    runner.measure(experiment, &cases, &mut heap::all())
}

/// A case of this experiment or of `page-test`.
pub(super) fn case(name: &str, spec: Heap) -> Case<Heap> {
    let params = [
        ("bytes", json!(spec.bytes)),
        ("step_bytes", json!(spec.step)),
        ("loops", json!(spec.loops)),
        ("operations", json!(spec.operations())),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name: name.to_owned(), params, spec }
}

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    beside("brk_test", rows)
}

/// Operations a second here with their standard deviation, which the published change was to lower, and the
/// published rates of the loop called `wanted`.
pub(super) fn beside(wanted: &str, rows: &[Row]) -> anyhow::Result<String> {
    let mut text = Sheet::new(
        &["case", "source", "operations a second", "mean ± standard deviation"].map(str::to_owned),
        2,
    );
    for row in rows.iter().filter(|row| row.metric == RATE.name) {
        let shown = row.median.map(|median| format!("{median:.0}")).unwrap_or_default();
        let spread = mean_and_deviation(&row.samples);
        let spread = spread.map(|(mean, by)| format!("{mean:.0} ± {by:.0} ({:.1} %)", 100.0 * by / mean));
        text.add_row(vec![row.case.clone(), format!("{} here", row.arm), shown, spread.unwrap_or_default()]);
    }
    for figure in published::figures("pcp")?.iter().filter(|figure| figure.case == wanted) {
        let source = format!("{}, {}", figure.source, figure.variant);
        text.add_row(vec![figure.case.clone(), source, figure.value.clone(), String::new()]);
    }
    Ok(text.to_string())
}
