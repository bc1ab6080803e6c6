//! What does it cost to map, touch and unmap a piece of memory, alone and beside other threads?

use serde_json::{Value, json};

use crate::bench::arms::churn::{self, Churn};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal, Over::BestOf};
use crate::bench::runner::Runner;

/// The experiment `churn`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "churn",
    question: "What does it cost to map a piece of memory, write to each of its pages and unmap it, with \
     one, two and four threads in one address space?",
    expectation: "linux: some us for 4 KiB, 1 us for each page beyond; with two threads each munmap \
     interrupts the other CPU, and threads wait for each other's lock. quire: with two threads the interrupt \
     is most of a small piece's time.",
    baseline: &["linux"],
    per: "piece",
    notes: &[
        "Each piece is a new mapping at an address that the kernel or the library chooses, in folios of 4 KiB, \
         cleared.",
        "`time` is what a thread takes for one piece.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[Goal::new("one page: never slower than `per-page`", "quire", &["4KiB"], AtMost(1.0))
        .over(BestOf(&["per-page"]))],
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/churn/"]],
    run,
    appendix: Some(|rows| Ok(format!("{}\n{}", beside::per_page(rows), counts::per_gib(rows)))),
};

/// Pieces: name, bytes, and how many in a full run.
const PIECES: [(&str, usize, usize); 3] =
    [("4KiB", 4 << 10, 20_000), ("64KiB", 64 << 10, 5_000), ("2MiB", 2 << 20, 200)];

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let mut cases = Vec::new();
    for (name, bytes, rounds) in PIECES {
        for threads in [1, 2, 4] {
            let rounds = runner.scale.pick(rounds / 100, rounds);
            let suffix = if threads == 1 { String::new() } else { format!("/{threads}threads") };
            let spec = Churn { bytes, rounds, threads, cpus: runner.cpus.clone() };
            cases.push(case(format!("{name}{suffix}"), spec));
        }
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
