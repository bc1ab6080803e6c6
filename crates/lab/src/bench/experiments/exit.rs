//! What does the end of an address space cost?

use crate::bench::arms::exit;
use crate::bench::beside;
use crate::bench::caches;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::memory::Memory;
use crate::bench::runner::Runner;

/// The experiment `exit`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "exit",
    question: "What does the exit of an address space with 1 GiB of populated anonymous memory cost, by folio size?",
    expectation: "linux: as munmap, and some 100 us for the process. quire: less than munmap, since nothing is flushed.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page is populated, on Linux by the process that exits.",
        caches::NOTE,
        "`/shuffled`: the pages were touched in random order, so that neighbours have frames far apart (verified).",
        "On Linux a whole process ends (threads, files, signals, a wake-up of its parent); `empty` is what that costs \
         without the memory.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new("folios of 4 KiB: 30 times as fast as `linux`", "quire", &["4KiB/cold"], Times(30.0))
            .over(BestOf(&["linux"])),
        Goal::new("no flush", "quire", &["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"], AtMost(0.0))
            .counter("nr_tlb_local_flush_all"),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/exit/"]],
    run,
    appendix: Some(|rows| Ok(format!("{}\n{}", beside::per_page(rows), counts::per_gib(rows)))),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let memories: Vec<Memory> =
        Memory::of_every_folio_and_shuffled(Memory::bytes_at(&runner.scale)).collect();
    let cases = Memory::plain_cases(caches::cold_and_warm(&memories));
    runner.measure(experiment, &cases, &mut exit::all())
}
