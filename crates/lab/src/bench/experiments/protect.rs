//! What does it cost to write-protect a range and to make it writable again?

use crate::bench::arms::protect;
use crate::bench::caches;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::goal::{Bound::Times, Goal, Over::BestOf};
use crate::bench::memory::Memory;
use crate::bench::runner::Runner;

/// The experiment `protect`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "protect",
    question: "What do two calls of mprotect cost that make 1 GiB of populated memory read-only and writable again, by folio size?",
    expectation: "linux: 5 to 15 ms at 4 KiB, most of it in the second call, which reads each descriptor; \
     under 100 us mapped by PMDs.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page is populated. `time` is the sum of both calls.",
        caches::NOTE,
        "The counter `writable_without_a_fault`: pages that could be written afterwards without another \
         fault.",
        "Linux 6.17 made this call slower, and 6.18, which `linux` is here, still is: from 400 KiB on it takes more than \
         twice as long as in 6.16, which read entries one by one (Yang, \"[REGRESSION] mm/mprotect: 2x+ slowdown for \
         >=400KiB regions since PTE batching (cac1db8c3aad)\", February 2026, which found it in 6.19 too; 40000 KiB: \
         0.173 ms in 6.16). A part of the ratio to `linux` is this. The proposed remedy gains 14 % (Falcato, \
         \"mm/mprotect: micro-optimization work\", v3, April 2026: 86.0 to 73.4 us).",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new("folios of 4 KiB: 20 times as fast as `linux`", "quire", &["4KiB/cold"], Times(20.0))
            .over(BestOf(&["linux"])),
        Goal::new("folios of 64 KiB: 10 times", "quire", &["64KiB/cold"], Times(10.0))
            .over(BestOf(&["linux"])),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/protect/"]],
    run,
    appendix: Some(|rows| Ok(counts::per_gib(rows))),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let memories: Vec<Memory> = Memory::of_every_folio(Memory::bytes_at(&runner.scale)).collect();
    let cases = Memory::plain_cases(caches::cold_and_warm(&memories));
    runner.measure(experiment, &cases, &mut protect::all())
}
