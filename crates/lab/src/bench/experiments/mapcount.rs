//! What does it cost to count how often each frame of a 1 GiB page is mapped?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::mapcount::{self, Verb};
use crate::bench::beside::{median, relative};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal, Over::BestOf};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `mapcount`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mapcount",
    question: "How long do mapping, unmapping, copying and collapsing of 1 GiB in 4 KiB leaves take with \
     each way of counting map counts?",
    expectation: "quire: within 1.15 of head-only, which cannot tell how often a frame is mapped. per-frame: \
     many times as long wherever whole tables change. by leaf: two to ten times.",
    baseline: &["head-only"],
    per: "GiB",
    notes: &[
        "The memory is one folio of 1 GiB of a pool. Each repetition allocates and frees the page tables.",
        "`map`: a table at a time. `map-each`: one leaf at a time, in address order. `fork`: copies all \
         leaves to another address space. `collapse`: to one leaf of 1 GiB.",
        "`arrive`: each leaf in two address spaces when its contents arrive, in random order, as after a \
         migration by post-copy. `collapse-arrived`: both collapse it to one leaf of 1 GiB then.",
        "`count_frames`: frames that hold counts after the verb (per-frame: 8 for each 2 MiB, for good; in \
         Linux these are page descriptors, which then cannot be freed).",
        "`total-mapped` has both numbers of a folio in one word that one step changes. The proposal changes them under a bit \
         lock and keeps slots for address spaces, so the arm is cheaper. The proposal leaves out pages of pools; here it \
         counts one.",
        "Each verb runs once before the timing, so that the first use of memory is not part of it.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new(
            "table by table: at most 1.15 of `head-only`",
            "quire",
            &["map", "unmap", "fork", "collapse"],
            AtMost(1.15),
        )
        .over(BestOf(&["head-only"])),
        Goal::new(
            "leaf by leaf as contents arrive: at most 1.1 of `head-only-by-leaf`",
            "quire",
            &["map-each", "arrive"],
            AtMost(1.1),
        )
        .over(BestOf(&["head-only-by-leaf"])),
        Goal::new(
            "every verb: at most 1.1 of `total-mapped`",
            "quire",
            &["map", "map-each", "arrive", "unmap", "fork", "collapse"],
            AtMost(1.1),
        )
        .over(BestOf(&["total-mapped"])),
    ],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &["crates/lab/src/bench/arms/mapcount/", "crates/lab/src/bench/arms/collapse_huge/names.rs"],
    ],
    run,
    appendix: Some(beside_each_other),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let case = |verb: Verb| {
        let params = [("bytes".to_owned(), json!(1u64 << 30))].into_iter().collect();
        Case { name: verb.name().to_owned(), params, spec: verb }
    };
    // `collapse-arrived` does what `arrive` does, and times the other half.
    let verbs = Verb::ALL.into_iter().filter(|verb| !runner.scale.smoke || *verb != Verb::Arrived);
    runner.measure(experiment, &verbs.map(case).collect::<Vec<_>>(), &mut mapcount::all())
}

fn beside_each_other(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "case",
        "quire / head-only",
        "quire / head-only-by-leaf",
        "quire / total-mapped",
        "per-frame / quire",
        "quire, per second",
    ];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let over = |arm, base| relative(median(rows, arm, case), median(rows, base, case));
        let rate = median(rows, "quire", case).map(|time| format!("{:.0}", 1e9 / time));
        text.add_row(vec![
            case.to_owned(),
            over("quire", "head-only"),
            over("quire", "head-only-by-leaf"),
            over("quire", "total-mapped"),
            over("per-frame", "quire"),
            rate.unwrap_or_default(),
        ]);
    }
    Ok(format!("times over each other, and GiB a second\n{text}\n{}", counts::of_pools(rows, "verb")))
}
