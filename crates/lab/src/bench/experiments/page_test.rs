//! What does it cost to grow a heap, touch it and give it back?

use crate::bench::arms::heap::{self, Heap};
use crate::bench::code;
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

use super::brk_test::{beside, case};

/// The experiment `page-test`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "page-test",
    question: "How many pages a second can a program get that grows its heap by brk, writes to each page, \
     and shrinks it?",
    expectation: "linux: about a million pages a second, most of it the fault (0.66 million in 2017, as published). quire: \
                  several times that, since a fault is no trap here.",
    baseline: &["linux"],
    per: "page",
    notes: &[
        "The loop of AIM9's page_test, written anew: the heap grows by 1 MiB in steps, every page is \
         written, one call shrinks it.",
        "`loop` is the time of one such loop; every figure includes the calls to brk and freeing the pages.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/heap/"]],
    run,
    appendix: Some(appendix),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let loops = runner.scale.pick(2, 64);
    let steps = [("step-4KiB", 4 << 10), ("step-128KiB", 128 << 10), ("step-1MiB", 1 << 20)];
    let heap = |step| Heap { bytes: 1 << 20, step, touch: true, loops };
    let cases = steps.map(|(name, step)| case(name, heap(step)));
    runner.measure(experiment, &cases, &mut heap::all())
}

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    beside("page_test", rows)
}
