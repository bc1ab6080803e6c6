//! What does munmap cost, by folio size?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::unmap::{self, RunBy, Unmap};
use crate::bench::beside::{self, relative};
use crate::bench::caches;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::folio::PAGE;
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::{self, BestOf},
};
use crate::bench::memory::Memory;
use crate::bench::published::{self, Published};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `unmap`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "unmap",
    question: "What does munmap of 1 GiB of populated anonymous memory cost, by folio size?",
    expectation: "linux: 20 to 60 ms at 4 KiB, a sixth of that at 2 MiB mapped by PTEs (as published), well \
     under a millisecond mapped by PMDs, where only 512 folios are freed. quire: at most a tenth of \
     per-page. runs: falls with the folio size as published.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Every page is populated. Only munmap is timed; it includes freeing the frames.",
        "`/shuffled`: the pages were touched in random order, so that neighbours have frames far apart (verified).",
        caches::NOTE,
        "`/2cpus`: a second CPU runs the address space and spins, so that a flush must interrupt it. `/idle`: no CPU \
         runs the address space, so that no flush is needed.",
        "`/page-by-page`: one call for each page, in address order; the time is that of all calls.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new(
            "folios of 4 KiB, frames in sequence: 30 times as fast as `linux`",
            "quire",
            &["4KiB/cold"],
            Times(30.0),
        )
        .over(LINUX),
        Goal::new(
            "folios of 4 KiB, frames shuffled: 12 times",
            "quire",
            &["4KiB/shuffled/cold"],
            Times(12.0),
        )
        .over(LINUX),
        Goal::new(
            "folios of 16 KiB to 2 MiB mapped by PTEs: 20 times",
            "quire",
            SIZES.split_at(2).1,
            Times(20.0),
        )
        .over(LINUX),
        Goal::new("folios of 2 MiB mapped by PMDs: 50 times", "quire", &["2MiB-pmd/cold"], Times(50.0))
            .over(LINUX),
        Goal::new("the published comparison: at most 0.1 of `per-page`", "quire", &SIZES, AtMost(0.1))
            .over(BestOf(&["per-page"])),
        Goal::new("one page: never slower than `per-page`", "quire", &["4KiB/page-by-page"], AtMost(1.0))
            .over(BestOf(&["per-page"])),
        Goal::new(
            "one call: at most 8 local flushes",
            "quire",
            &["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"],
            AtMost(8.0),
        )
        .counter("nr_tlb_local_flush_all"),
        Goal::new(
            "no interrupt of a CPU that does not run the address space",
            "quire",
            &["4KiB", "4KiB/idle", "64KiB/idle", "2MiB-pmd/idle"],
            AtMost(0.0),
        )
        .counter("ipis"),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/unmap/"]],
    run,
    appendix: Some(appendix),
};

/// Folios mapped by entries of 4 KiB, by size.
const SIZES: [&str; 10] = [
    "4KiB/cold",
    "8KiB/cold",
    "16KiB/cold",
    "32KiB/cold",
    "64KiB/cold",
    "128KiB/cold",
    "256KiB/cold",
    "512KiB/cold",
    "1MiB/cold",
    "2MiB-pte/cold",
];

/// The time of a process of the running kernel.
const LINUX: Over = BestOf(&["linux"]);

/// Cases that are also measured with another number of CPUs that run the address space.
const RUN_BY_OTHERS: [&str; 3] = ["4KiB", "64KiB", "2MiB-pmd"];

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = Memory::bytes_at(&runner.scale);
    let memories: Vec<Memory> = Memory::of_every_folio_and_shuffled(bytes).collect();
    let mut cases: Vec<Case<Unmap>> =
        caches::cold_and_warm(&memories).map(|memory| case(memory, "", bytes)).collect();
    cases.extend(memories.first().map(|memory| case(*memory, "/page-by-page", PAGE)));
    let other = runner.cpus[1 % runner.cpus.len()];
    for memory in memories.iter().filter(|memory| RUN_BY_OTHERS.contains(&memory.name().as_str())) {
        let by = |name, run_by| run_by_others(*memory, name, run_by, runner.cpus.len());
        cases.extend([by("/2cpus", RunBy::Two(other)), by("/idle", RunBy::NoCpu)]);
    }
    runner.measure(experiment, &cases, &mut unmap::all())
}

fn case(memory: Memory, modifier: &str, each: usize) -> Case<Unmap> {
    memory.case(modifier, &[("each", json!(each))], Unmap { memory, each, run_by: RunBy::One })
}

fn run_by_others(memory: Memory, modifier: &str, run_by: RunBy, processors: usize) -> Case<Unmap> {
    let each = memory.bytes;
    let params = [
        ("each", json!(each)),
        ("run_by_cpus", json!(run_by.cpus())),
        ("oversubscribed", json!(run_by.cpus() > processors)),
    ];
    memory.case(modifier, &params, Unmap { memory, each, run_by })
}

fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    Ok(format!("{}\n{}\n{}", beside_published(rows)?, beside::per_page(rows), counts::per_gib(rows)))
}

/// The end of the names of cases with caches that hold other memory.
const COLD: &str = "/cold";

/// Every arm and the published figures, each relative to its own 4 KiB case: only proportions can be compared
/// across machines.
fn beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let figures = published::figures("zap")?;
    let arms = table::distinct(rows.iter().filter(|row| row.median.is_some()).map(|row| row.arm.as_str()));
    let variants = table::distinct(figures.iter().map(|figure| figure.variant.as_str()));
    let source = table::distinct(figures.iter().map(|figure| figure.source.as_str())).join(", ");
    let mut header = vec!["case".to_owned()];
    header.extend(arms.iter().map(|arm| format!("{arm} here")));
    header.extend(variants.iter().map(|variant| format!("published, {variant}")));
    let mut text = Sheet::new(&header, 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let Some(folio) = case.strip_suffix(COLD) else { continue };
        let median = |arm: &str, folio| beside::median(rows, arm, &format!("{folio}{COLD}"));
        let mut cells = vec![case.to_owned()];
        cells.extend(arms.iter().map(|arm| relative(median(arm, folio), median(arm, "4KiB"))));
        cells.extend(variants.iter().map(|variant| {
            relative(published_value(&figures, variant, folio), published_value(&figures, variant, "4KiB"))
        }));
        text.add_row(cells);
    }
    Ok(format!("time relative to the 4KiB/cold case of the same column; published: {source}\n{text}"))
}

/// The published seconds of `case`; the published folios of 2 MiB were mapped by PTEs.
fn published_value(figures: &[Published], variant: &str, case: &str) -> Option<f64> {
    let size = match case {
        "1MiB" => "1024KiB",
        "2MiB-pte" => "2048KiB",
        other => other,
    };
    let wanted = format!("munmap 1GiB folio {size}");
    figures
        .iter()
        .find(|figure| figure.variant == variant && figure.case == wanted)
        .and_then(Published::number)
}
