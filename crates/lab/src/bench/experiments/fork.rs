//! What does fork cost, at once and later?

use serde_json::json;

use crate::bench::arms::fork::{self, Fork};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{COPIED, FORKS};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `fork`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fork",
    question: "What does fork of 1 GiB of populated anonymous memory cost, by folio size, and the first writes to 1 %, 10 % and 100 % of the pages after it?",
    expectation: "linux: 10 to 15 ms at 4 KiB, two thirds of that for large folios mapped by PTEs (as \
     published), 100 us mapped by PMDs; then a microsecond for each page written. shared: some 100 ns a \
     table; the first write below each table pays the rest, which copied pays at once.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page of the parent was written once before.",
        "`/write1`, `/write10`, `/write100`: the child then writes to every hundredth, every tenth, or every page. \
         `time` is fork and writes together, so that deferred work counts. Only the written page is copied, whatever \
         its folio.",
    ],
    own: &["copied", "shared"],
    apart: &[],
    goals: &[
        Goal::new(
            "folios of 4 KiB, tables copied: 20 times as fast as `linux`",
            "copied",
            &["4KiB"],
            Times(20.0),
        )
        .over(BestOf(&["linux"])),
        Goal::new("folios of 4 KiB, tables shared: 100 times", "shared", &["4KiB"], Times(100.0))
            .over(BestOf(&["linux"])),
        Goal::new(
            "shared, and all pages then written: at most 1.1 of copied",
            "shared",
            &["4KiB/write100", "64KiB/write100", "2MiB-pte/write100", "2MiB-pmd/write100"],
            AtMost(1.1),
        )
        .over(BestOf(&["copied"])),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/fork/"]],
    run,
    appendix: Some(appendix),
};

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    let shared =
        beside::over(rows, FORKS, COPIED, "wanted for shared and every page then written: at most 1.1");
    Ok(format!("{shared}\n{}", counts::per_gib(rows)))
}

/// Writes after the fork: the case's modifier, and one page in how many is written.
const WRITES: [(&str, usize); 3] = [("/write1", 100), ("/write10", 10), ("/write100", 1)];

/// Folios whose deferred cost the appendix shows.
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
