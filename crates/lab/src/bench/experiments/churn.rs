//! What does it cost to map, touch and unmap a piece of memory, alone and beside other threads?

use serde_json::{Value, json};

use crate::bench::arms::churn::{self, Churn, Work};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::runner::Runner;

/// The experiment `churn`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "churn",
    question: "What does it cost to map a piece of memory, write to each of its pages and unmap it, with \
     one, two and four threads in one address space? And to touch a piece that is mapped and drop its pages \
     again, in ranges apart and in one range?",
    expectation: "linux: some us for 4 KiB, 1 us for each page beyond; with two threads each munmap \
     interrupts the other CPU, and threads wait for each other's lock. quire: with two threads the interrupt \
     is most of a small piece's time.",
    baseline: &["linux"],
    per: "piece",
    notes: &[
        "Each piece is a new mapping at an address that the kernel or the library chooses, in folios of 4 KiB, \
         cleared.",
        "`time` is what a thread takes for one piece.",
        "`verbs`: a piece of 64 KiB of memory that is mapped already is touched, and dropped by MADV_DONTNEED \
         in two of four rounds, by two mprotects and MADV_DONTNEED in the third, by an mmap over it in the \
         fourth. Each thread has a range of 4 MiB; in `verbs-overlapping` all have the same, and touch it by \
         MADV_POPULATE_WRITE.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new("one page: never slower than `per-page`", "quire", &["4KiB"], AtMost(1.0))
            .over(BestOf(&["per-page"])),
        Goal::new(
            "one thread: at least as fast as `linux`",
            "quire",
            &["4KiB", "64KiB", "2MiB", "verbs"],
            Times(1.0),
        )
        .over(BestOf(&["linux"])),
        Goal::new(
            "two threads: at least as fast as `linux`",
            "quire",
            &[
                "4KiB/2threads",
                "64KiB/2threads",
                "2MiB/2threads",
                "verbs/2threads",
                "verbs-overlapping/2threads",
            ],
            Times(1.0),
        )
        .over(BestOf(&["linux"])),
        Goal::new(
            "four threads: at least as fast as `linux`",
            "quire",
            &[
                "4KiB/4threads",
                "64KiB/4threads",
                "2MiB/4threads",
                "verbs/4threads",
                "verbs-overlapping/4threads",
            ],
            Times(1.0),
        )
        .over(BestOf(&["linux"])),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/churn/"]],
    run,
    appendix: Some(|rows| Ok(format!("{}\n{}", beside::per_page(rows), counts::per_gib(rows)))),
};

/// Pieces: name, bytes, and how many in a full run.
const PIECES: [(&str, usize, usize); 3] =
    [("4KiB", 4 << 10, 20_000), ("64KiB", 64 << 10, 5_000), ("2MiB", 2 << 20, 200)];

/// Cases of memory that is mapped already: name, work, and threads.
const VERBS: [(&str, Work, usize); 5] = [
    ("verbs", Work::Apart, 1),
    ("verbs/2threads", Work::Apart, 2),
    ("verbs/4threads", Work::Apart, 4),
    ("verbs-overlapping/2threads", Work::Overlapping, 2),
    ("verbs-overlapping/4threads", Work::Overlapping, 4),
];
const VERBS_BYTES: usize = 64 << 10;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let mut cases = Vec::new();
    for (name, bytes, rounds) in PIECES {
        for threads in [1, 2, 4] {
            let rounds = runner.scale.pick(rounds / 100, rounds);
            let suffix = if threads == 1 { String::new() } else { format!("/{threads}threads") };
            let spec = Churn { work: Work::Map, bytes, rounds, threads, cpus: runner.cpus.clone() };
            cases.push(case(format!("{name}{suffix}"), spec));
        }
    }
    for (name, work, threads) in VERBS {
        let spec = Churn {
            work,
            bytes: VERBS_BYTES,
            rounds: runner.scale.pick(64, 5_000),
            threads,
            cpus: runner.cpus.clone(),
        };
        cases.push(case(name.to_owned(), spec));
    }
    runner.measure(experiment, &cases, &mut churn::all())
}

fn case(name: String, spec: Churn) -> Case<Churn> {
    let params = [
        ("bytes", json!(spec.bytes * spec.rounds * spec.threads)),
        ("piece_bytes", json!(spec.bytes)),
        ("rounds", json!(spec.rounds)),
        ("threads", json!(spec.threads)),
        ("oversubscribed", json!(spec.threads > spec.cpus.len())),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name, params, spec }
}
