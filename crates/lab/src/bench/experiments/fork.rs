//! What does a copy of an address space cost, at once and later?

use serde_json::json;

use crate::bench::arms::fork::{self, Fork};
use crate::bench::beside;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{COPIED, FORKS};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fork",
    question: "What does fork of 1 GiB of populated anonymous memory cost, by folio size, and the first writes to 1 %, 10 % and 100 % of the pages after it?",
    expectation: "linux: 10 to 15 ms at 4 KiB, two thirds of that for large folios mapped by PTEs (as published), 100 us mapped by PMDs; then a microsecond for each page written to. shared: some 100 ns a table, and what copied pays at once comes with the \
                  first write below each table.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page of the parent was written once before.",
        "`/write1` and so on: the child then writes to every hundredth, every tenth, or every page; `time` is fork and writes together, so that what was put off is seen. Only the page written to is copied, whatever its folio.",
    ],
    run,
    appendix: Some(appendix),
};

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    let shared =
        beside::over(rows, FORKS, COPIED, "wanted for shared and every page then written: at most 1.1");
    Ok(format!("{shared}\n{}", counts::per_gib(rows)))
}

/// Writes after the fork: what the case is called, and every how many pages one is written to.
const WRITES: [(&str, usize); 3] = [("/write1", 100), ("/write10", 10), ("/write100", 1)];

/// The folios whose deferred cost is shown.
const WRITTEN: [&str; 4] = ["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"];

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = Memory::bytes_at(&runner.scale);
    let mut cases: Vec<Case<Fork>> = Vec::new();
    for memory in Memory::of_every_folio(bytes) {
        let case = |name: &str, every: Option<usize>| {
            memory.case(name, &[("written_every", json!(every))], Fork { memory, every })
        };
        cases.push(case("", None));
        if WRITTEN.contains(&memory.folio.name().as_str()) {
            cases.extend(WRITES.map(|(name, every)| case(name, Some(every))));
        }
    }
    runner.measure(experiment, &cases, &mut fork::all())
}
