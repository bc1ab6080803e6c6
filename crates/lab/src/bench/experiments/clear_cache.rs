//! How much of a working set does a clear leave in the caches?

use crate::output::Sheet;
use serde_json::json;

use super::clear::extent_name;
use crate::bench::arms::clear::{self, Cache, Reread, Setting};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal, Over::BestOf};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `clear-cache`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "clear-cache",
    question: "How long does it take to read a working set of 1 MiB again after 2 MiB, 32 MiB or 1 GiB were cleared beside it?",
    expectation: "After non-temporal stores: within 15 % of no clear. After stores through the caches: \
     several times as long from 32 MiB on, most of all where each load waits for the one before.",
    baseline: &["none"],
    per: "call",
    notes: &[
        "The working set is read eight times, the extent is cleared, and the working set is read once more, \
         which is timed: in address order, or as a linked list (`/chase`), one load for each line of 64 \
         bytes. It is in a huge page; TLB misses on small pages would add half of the time.",
        "The arms `quire...` clear by the policy under each hint; `quire` gives no hint, and 2 MiB may stay \
         cached. `wait` clears nothing for as long as `quire` took last, which shows the effect of other \
         programs on the caches. `translate` clears one line of each page, so its difference from `quire` is \
         the rest of the page.",
    ],
    own: &["quire"],
    apart: &["none", "wait", "translate", "quire-soon", "quire-later"],
    goals: &[Goal::new(
        "reading a cached working set after a clear of 32 MiB: at most 1.15 of no clear",
        "quire",
        &["32MiB", "32MiB/chase"],
        AtMost(1.15),
    )
    .over(BestOf(&["none"]))],
    file: file!(),
    code: &[code::CLEARING, &["crates/lab/src/bench/arms/clear/", "crates/replay/src/host/thp.rs"]],
    run,
    appendix: Some(goals),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let extents: &[u64] = runner.scale.pick(&[2 << 20], &[2 << 20, 32 << 20, 1 << 30]);
    let both = |&extent| {
        let case = move |reread| case(Cache { extent, working_set: 1 << 20, reread });
        [Reread::InOrder, Reread::Chase].map(case)
    };
    let cases: Vec<_> = extents.iter().flat_map(both).collect();
    runner.measure(experiment, &cases, &mut clear::caches(&Setting::of(runner)?))
}

fn case(spec: Cache) -> Case<Cache> {
    let modifier = match spec.reread {
        Reread::InOrder => "",
        Reread::Chase => "/chase",
    };
    let params = [("extent_bytes", spec.extent), ("working_set_bytes", spec.working_set as u64)];
    let params = params.map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect();
    Case { name: format!("{}{modifier}", extent_name(spec.extent)), params, spec }
}

/// Arms that clear nothing or next to nothing, for as long as the policy takes.
const BESIDE: [&str; 2] = ["wait", "translate"];

/// Each arm over no clear, and the policy over the arms [`BESIDE`] it.
fn goals(rows: &[Row]) -> anyhow::Result<String> {
    let arms = table::distinct(rows.iter().map(|row| row.arm.as_str()));
    let names = arms.iter().map(|arm| (*arm).to_owned());
    let header =
        std::iter::once("case".to_owned()).chain(names).chain(BESIDE.map(|arm| format!("quire / {arm}")));
    let mut text = Sheet::new(&header.collect::<Vec<_>>(), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let none = beside::median(rows, "none", case);
        let ratio = |arm: &&str| beside::relative(beside::median(rows, arm, case), none);
        let over =
            |arm| beside::relative(beside::median(rows, "quire", case), beside::median(rows, arm, case));
        text.add_row(
            std::iter::once(case.to_owned())
                .chain(arms.iter().map(ratio))
                .chain(BESIDE.map(over))
                .collect::<Vec<_>>(),
        );
    }
    Ok(format!(
        "time over that of no clear (wanted for quire: at most 1.15 after 32 MiB); the last columns: over \
         waiting as long, and over clearing a line of each page\n{text}"
    ))
}
