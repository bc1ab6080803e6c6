//! What does it cost to demote a huge page of 1 GiB into 512 of 2 MiB, and to promote these again?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::pool::{self, Demotion, Way};
use crate::bench::beside::{median, relative};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `demote`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "demote",
    question: "How long does it take to demote a free page of 1 GiB into 512 of 2 MiB, and to promote them \
     again, by the descriptor policy?",
    expectation: "in-block: 512 records linked, a few us a page of 1 GiB, no grace period. full: 16 MiB of \
     descriptors written, some ms. batched: one grace period and two flushes for each batch. per-page: 513 \
     grace periods. promote: as demote, in any order of the pool's list.",
    baseline: &["full"],
    per: "GiB",
    notes: &[
        "All pages are free pages of a pool, and no access touches them. `request` is the time for all pages of the \
         case.",
        "`scattered`: the pool's free list is in random order, and a part of every second 1 GiB is in use, \
         so only half of them can be promoted; the time is for each promoted page.",
        "`mask-tail` follows Shutsemau's series of February 2026 for Linux (version 7) but for one thing: there no page waits \
         for a grace period, here a promoted page waits for one, since it hides the heads of the 2 MiB \
         pages that it was before (decision 61).",
        "Linux cannot promote; Quire can, so that demoted memory can serve a request for 1 GiB again.",
        "Each repetition of Quire's arms starts a new machine. Its window and records are host pages of 4 \
         KiB, which the host brings in at the first write.",
        "Published (fix of the race with speculative walkers: Yu Zhao, July and August 2024, commit \
         bd225530a4c7 and its follow-ups): demoting 100 pages of 1 GiB took 8 min 58 s with a grace period \
         for each changed page (513 a page), and 0.90 s with one for each batch.",
    ],
    own: &["in-block"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &[
            "crates/lab/src/bench/arms/pool/",
            "crates/lab/src/bench/arms/clear/huge.rs",
            "crates/replay/src/host/memory.rs",
            "crates/replay/src/host/thp.rs",
        ],
    ],
    run,
    appendix: Some(beside_published),
};

/// Published seconds for each page of 1 GiB, of 100, with a grace period for each page and for each batch.
/// Not in the data file of published figures, since the source gives only these two.
const PUBLISHED_PER_PAGE: f64 = 538.0 / 100.0;
const PUBLISHED_BATCHED: f64 = 0.90 / 100.0;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    // The smaller number of 1 GiB pages fits most machines.
    let sizes: &[u64] = runner.scale.pick(&[2], &[4, 100]);
    let of_size = |&pages: &u64| {
        [Way::Demote, Way::Promote, Way::PromoteScattered].map(|way| case(Demotion { pages, way }))
    };
    let cases: Vec<Case<Demotion>> = sizes.iter().flat_map(of_size).collect();
    runner.measure(experiment, &cases, &mut pool::demotions())
}

fn case(spec: Demotion) -> Case<Demotion> {
    let (verb, modifier) = match spec.way {
        Way::Demote => ("demote", ""),
        Way::Promote => ("promote", ""),
        Way::PromoteScattered => ("promote", "/scattered"),
    };
    let params = [("gigantic_pages", json!(spec.pages)), ("changed", json!(spec.wanted()))];
    let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Case { name: format!("{verb}/{}{modifier}", spec.pages), params, spec }
}

/// The cost of the saving beside the published ratio of both ways, and the counts.
fn beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "case",
        "in-block / full",
        "batched / full",
        "per-page / full",
        "per-page / batched",
        "published, per-page / batched",
        "linux-saving / linux",
        "linux / in-block",
    ];
    let mut text = Sheet::new(&table::heads(&header, rows), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let over = |arm, base| relative(median(rows, arm, case), median(rows, base, case));
        let demotes = case.starts_with("demote");
        let published =
            if demotes { format!("{:.0}", PUBLISHED_PER_PAGE / PUBLISHED_BATCHED) } else { String::new() };
        text.add_row(vec![
            case.to_owned(),
            over("in-block", "full"),
            over("batched", "full"),
            over("per-page", "full"),
            over("per-page", "batched"),
            published,
            over("linux-saving", "linux"),
            over("linux", "in-block"),
        ]);
    }
    Ok(format!(
        "times over each other (published: {PUBLISHED_PER_PAGE:.2} s and {PUBLISHED_BATCHED:.3} s for each of 100 pages of 1 GiB)\n{text}\n{}",
        counts::of_pools(rows, "request")
    ))
}
