//! What does it cost to collapse small pages into folios of 2 MiB by copy?

use crate::bench::arms::collapse::{self, Collapsing};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Experiment, Measured};
use crate::bench::folio::Folio;
use crate::bench::goal::{Bound::Times, Goal, Over::BestOf};
use crate::bench::memory::Memory;
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// Measured rounds of a full run: the host of a virtual machine may take back what the new folios get, and single calls
/// take many times as long then.
pub const ROUNDS: usize = 31;

/// The experiment `collapse-thp`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "collapse-thp",
    question: "How long does it take to collapse 1 GiB of populated anonymous memory into folios of 2 MiB, \
     by the folio size before?",
    expectation: "linux: 220 to 480 ms, since it copies each page through the caches and frees each old \
     frame by itself. quire: the time of a non-temporal copy of 1 GiB, 80 to 100 ms, and some 10 us for each \
     2 MiB. 2MiB-pte: quire copies nothing.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page was written once before. Only the call is timed; it includes allocating the new folios and \
         freeing the old ones.",
        "`/shuffled`: the pages were touched in random order, so that neighbours have frames far apart (verified).",
        "`/file`: shared memory (Linux: a memfd). quire moves the pages and their descriptors; an access to \
         a page that moves waits until 64 are moved.",
        "No thread touches the memory meanwhile. On Quire a thread could read and store while pages are copied; on \
         Linux it would wait.",
        "On Linux as much memory is populated and freed right before the call, so that the host of a virtual machine has \
         brought in what the new folios take. A sample far above the others shows that it had taken some back. So a full \
         run has 31 rounds, and where the median itself is more than three times the least, it is marked.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[Goal::new(
        "folios of 4 KiB into leaves of 2 MiB by copy: 3 times as fast as `linux`",
        "quire",
        &["4KiB", "4KiB/shuffled", "4KiB/file"],
        Times(3.0),
    )
    .over(BestOf(&["linux"]))],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/collapse/"]],
    run,
    appendix: Some(appendix),
};

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    Ok(format!("{}\n{}", beside::per_page(rows), counts::per_gib(rows)))
}

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = Memory::bytes_at(&runner.scale);
    let chosen = ["4KiB", "64KiB", "2MiB-pte"];
    let mut memories: Vec<Memory> = Folio::all()
        .filter(|folio| chosen.contains(&folio.name().as_str()))
        .map(|folio| Memory { bytes, folio, shuffled: false, cold: false })
        .collect();
    memories.insert(1, Memory { shuffled: true, ..memories[0] });
    let shared = Collapsing { memory: memories[0], file: true };
    let anonymous = memories.into_iter().map(|memory| Collapsing { memory, file: false });
    let cases: Vec<_> = anonymous.chain([shared]).map(Collapsing::case).collect();
    runner.measure(experiment, &cases, &mut collapse::all())
}
