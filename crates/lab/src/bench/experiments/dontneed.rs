//! What does MADV_DONTNEED cost?

use crate::bench::arms::dontneed;
use crate::bench::beside;
use crate::bench::caches;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::memory::Memory;
use crate::bench::runner::Runner;

/// The experiment `dontneed`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "dontneed",
    question: "What does MADV_DONTNEED of 1 GiB of populated anonymous memory cost, by folio size?",
    expectation: "linux: as munmap, less the page tables. quire: as munmap; whole tables are detached here too.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page is populated. Only madvise is timed; it includes freeing the frames.",
        caches::NOTE,
        "`/shuffled`: the pages were touched in random order, so that neighbours have frames far apart (verified).",
        "Linux keeps the page tables; quire frees emptied ones too, and the next fault allocates a new one.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/dontneed/"]],
    run,
    appendix: Some(|rows| Ok(format!("{}\n{}", beside::per_page(rows), counts::per_gib(rows)))),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let memories: Vec<Memory> =
        Memory::of_every_folio_and_shuffled(Memory::bytes_at(&runner.scale)).collect();
    let cases = Memory::plain_cases(caches::cold_and_warm(&memories));
    runner.measure(experiment, &cases, &mut dontneed::all())
}
