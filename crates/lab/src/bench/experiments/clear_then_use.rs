//! What do a clear and a use of the cleared memory take together?

use crate::output::Sheet;
use serde_json::json;

use super::clear::extent_name;
use crate::bench::arms::clear::KERNELS;
use crate::bench::arms::clear::{self, Setting, Use, Used};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal, Over::BestOf};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;
use crate::calibrate;

/// The experiment `clear-then-use`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "clear-then-use",
    question: "How long does it take to clear an extent and then use nothing of it, the 64 KiB around the \
     fault, or all of it once, in order or scattered?",
    expectation: "Stores through the caches are fastest where all is used and fits the caches; non-temporal \
     stores are fastest otherwise. The policy is within 5 % of the best arm where all is used.",
    baseline: &["string"],
    per: "call",
    notes: &[
        "A call clears one extent and uses it: one load for each line of 64 bytes, in order; `scattered`: each \
         far from the one before, as many at once as the processor likes. Extents follow \
         each other in memory that no cache holds, at other addresses in each repetition.",
        "The arms `quire...` clear the part that an access waits for last. `quire-soon` has the hint of a \
         fault, `quire` that of a populate, `quire-later` that of memory without a use in sight. `contiguous` clears as \
         Linux does since 7.0, the same part last.",
    ],
    own: &["quire-soon"],
    apart: &["quire", "quire-later"],
    goals: &[Goal::new(
        "clearing an extent and using all of it: at most 1.05 of the best kernel",
        "quire-soon",
        &[
            "64KiB/all",
            "128KiB/all",
            "256KiB/all",
            "512KiB/all",
            "1MiB/all",
            "2MiB/all",
            "4MiB/all",
            "8MiB/all",
            "16MiB/all",
            "32MiB/all",
        ],
        AtMost(1.05),
    )
    .over(BestOf(KERNELS))],
    file: file!(),
    code: &[code::CLEARING, &["crates/lab/src/bench/arms/clear/", "crates/replay/src/host/thp.rs"]],
    run,
    appendix: Some(goals),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let extents: &[u64] = runner.scale.pick(
        &[64 << 10, 2 << 20],
        &[64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20],
    );
    let (bytes, among) = runner.scale.pick((4 << 20, 16 << 20), (64 << 20, 1 << 30));
    let every = |&extent| {
        let case = move |used| case(Used { extent, bytes, among, used });
        [Use::Nothing, Use::Near, Use::All].map(case)
    };
    let mut cases: Vec<_> = extents.iter().flat_map(every).collect();
    // The published case, and the use that no prefetcher helps: each line from memory, and each page's
    // translation from the tables.
    let (whole, among) = runner.scale.pick((4 << 20, 16 << 20), (1 << 30, 2 << 30));
    let case = |used| case(Used { extent: whole, bytes: whole, among, used });
    cases.extend([Use::Nothing, Use::All, Use::Scattered].map(case));
    runner.measure(experiment, &cases, &mut clear::uses(&Setting::of(runner)?))
}

fn case(spec: Used) -> Case<Used> {
    let modifier = match spec.used {
        Use::Nothing => "none",
        Use::Near => "near",
        Use::All => "all",
        Use::Scattered => "scattered",
    };
    let params = [("extent_bytes", spec.extent), ("bytes", spec.bytes), ("among_bytes", spec.among)];
    let params = params.map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect();
    Case { name: format!("{}/{modifier}", extent_name(spec.extent)), params, spec }
}

/// The policy beside the best of all arms.
fn goals(rows: &[Row]) -> anyhow::Result<String> {
    let arms = table::distinct(rows.iter().map(|row| row.arm.as_str()));
    let header = ["case", "best arm", "quire-soon / best", "quire / best", "quire-later / best", "to reach"];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let times = arms.iter().filter_map(|arm| Some((*arm, beside::median(rows, arm, case)?)));
        let best = times.min_by(|one, other| one.1.total_cmp(&other.1));
        let over = |arm: &str| beside::relative(beside::median(rows, arm, case), best.map(|best| best.1));
        let wanted = if case.ends_with("/all") { "quire-soon 1.05" } else { "" };
        text.add_row([
            case.to_owned(),
            best.map(|best| best.0.to_owned()).unwrap_or_default(),
            over("quire-soon"),
            over("quire"),
            over("quire-later"),
            wanted.to_owned(),
        ]);
    }
    Ok(format!("time over that of the best arm\n{text}\n{}", calibrate::words_of_this_run()))
}
