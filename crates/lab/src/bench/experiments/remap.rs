//! What does it cost to move memory to another address?

use serde_json::json;

use crate::bench::arms::remap::{self, Move};
use crate::bench::caches;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::memory::Memory;
use crate::bench::runner::Runner;

/// The experiment `move`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "move",
    question: "What does mremap of 1 GiB of populated memory cost, by folio size and by the alignment that \
     both addresses share?",
    expectation: "linux: some us where whole tables move (both addresses aligned alike to 1 GiB; a few times \
     that for 2 MiB), 10 ms and more at 4 KiB, entry by entry. quire: the same steps, cheaper.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page is populated. `/cold`: other memory was written right before the call, by every arm, as much as \
         the last-level cache holds and at least 128 MiB. The source is aligned to 1 GiB; the target is aligned likewise, \
         or 2 MiB (`/alike-2MiB`) or 4 KiB (`/alike-4KiB`) beyond that.",
        "The target is a mapping without access rights, which mremap unmaps first.",
        "`2MiB-pmd/alike-4KiB` must split every leaf.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/remap/"]],
    run,
    appendix: Some(|rows| Ok(counts::per_gib(rows))),
};

/// The target's offset from a multiple of 1 GiB, and the case's modifier.
const TARGETS: [(usize, &str); 3] = [(0, "/alike-1GiB"), (2 << 20, "/alike-2MiB"), (4 << 10, "/alike-4KiB")];

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = Memory::bytes_at(&runner.scale);
    let mut cases: Vec<Case<Move>> = Vec::new();
    for memory in caches::cold(Memory::of_every_folio(bytes)) {
        let case = |(beyond, name)| memory.case(name, &[("beyond", json!(beyond))], Move { memory, beyond });
        cases.extend(TARGETS.map(case));
    }
    runner.measure(experiment, &cases, &mut remap::all())
}
