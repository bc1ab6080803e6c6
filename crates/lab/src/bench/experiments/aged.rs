//! What do the verbs cost on memory that has lived?

use procfs::Current;
use serde_json::{Value, json};

use crate::bench::arms::aged::{self, Aged, Verb};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::memory::Memory;
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;
use crate::output::Sheet;

/// The experiment `aged`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "aged",
    question: "What do the verbs cost on 1 GiB of memory that has lived, among frames of which others hold half?",
    expectation: "linux: twice as long as on fresh memory, since each frame's descriptor is in no cache. quire: some four \
     times as long, for the same reason, and still at least 20 times as fast at munmap.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Before: four other address spaces (linux: processes) populate memory by single frames (`other_bytes` together), \
         16 pages each by turns, and free a random half of them in random order, by turns too. Then the case's memory is populated: an eighth by folios of 2 MiB, a quarter by folios of 64 \
         KiB, the rest by single frames, each kind in random order; `/4KiB`: all by single frames.",
        "Then one page in 16 is dropped, half of these are written again, and one page in 8 is written while a child of \
         `fork` lives. One block of 2 MiB in 32 is spared.",
        "At the end so much other memory is written that nothing is in a cache, and the pages of every second \
         block of 2 MiB are read: Linux reads a byte of each, Quire's arms its entry in the page table.",
        "`frames_in_sequence` counts pages whose frame follows that of the page before. Linux hands out free frames in the \
         order in which they were freed; Quire takes those of one block together.",
        "`other_in_sequence` counts the same as `frames_in_sequence` in one of the other address spaces, before it frees any.",
        "`collapse`: MADV_COLLAPSE of the whole; blocks that have a folio of 2 MiB stay as they are. On Linux as much memory \
         is populated by such folios and freed right before. `fault`: all pages are dropped, untimed, and written again \
         in order of address, by single frames. Both sides copy and clear there; in the other cases Quire's do not.",
        "`other_bytes` are 16 GiB, or as many as fit into memory beside Quire's hosted machine, which has as many.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new(
            "munmap of 1 GiB: 20 times as fast as `linux`",
            "quire",
            &["unmap", "unmap/4KiB"],
            Times(20.0),
        )
        .over(BestOf(&["linux"])),
        Goal::new("every verb: faster than `linux`", "quire", &["*"], Times(1.0)).over(BestOf(&["linux"])),
        Goal::new(
            "one call: at most 8 local flushes",
            "quire",
            &["unmap", "unmap/4KiB", "dontneed"],
            AtMost(8.0),
        )
        .counter("nr_tlb_local_flush_all"),
    ],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &["crates/lab/src/bench/arms/aged/", "crates/lab/src/bench/arms/collapse/call.rs"],
    ],
    run,
    appendix: Some(|rows| Ok(beside_linux(rows))),
};

const GIB: u64 = 1 << 30;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = Memory::bytes_at(&runner.scale);
    let other_bytes = if runner.scale.smoke { 64 << 20 } else { other_bytes(bytes)? };
    let case = |verb, name: &str, mixed| {
        let params = [
            ("bytes", json!(bytes)),
            ("pages", json!(bytes / 4096)),
            ("mixed", json!(mixed)),
            ("other_bytes", json!(other_bytes)),
        ];
        let params =
            params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
        Case { name: name.to_owned(), params, spec: Aged { verb, bytes, mixed, other_bytes } }
    };
    let mut cases = vec![case(Verb::Unmap, "unmap/4KiB", false)];
    cases.extend(Verb::ALL.map(|(verb, name)| case(verb, name, true)));
    runner.measure(experiment, &cases, &mut aged::all())
}

/// The times of both sides, and how far their frames are in sequence.
fn beside_linux(rows: &[Row]) -> String {
    let header = ["case", "linux / quire", "frames in sequence: quire", "linux", "of pages"];
    let mut text = Sheet::new(&table::heads(&header, rows), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let median = |arm| beside::median(rows, arm, case);
        let frames = |arm: &str| {
            let row = rows.iter().find(|row| row.case == case && row.arm == arm);
            let found = row.and_then(|row| row.counters.get("frames_in_sequence"));
            found.map_or_else(String::new, u64::to_string)
        };
        let pages = rows
            .iter()
            .find(|row| row.case == case)
            .and_then(|row| Some(row.params.get("pages")?.to_string()));
        text.add_row(vec![
            case.to_owned(),
            beside::relative(median("linux"), median("quire")),
            frames("quire"),
            frames("linux"),
            pages.unwrap_or_default(),
        ]);
    }
    text.to_string()
}

/// Whole GiB, 16 at most: both sides have as much beside their case, and 4 GiB stay free.
fn other_bytes(bytes: usize) -> anyhow::Result<usize> {
    let available = procfs::Meminfo::current()?.mem_available.unwrap_or(0);
    let each = available.saturating_sub(4 * GIB) / 2;
    let gib = (each.saturating_sub(2 * bytes as u64) / GIB).clamp(1, 16);
    Ok((gib * GIB) as usize)
}
