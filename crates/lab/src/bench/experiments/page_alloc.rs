//! What does a page frame cost, taken and given back?

use serde_json::{Value, json};

use crate::bench::arms::page_alloc::{self, Operation, PageAlloc};
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::runner::Runner;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "page-alloc",
    question: "What does one page frame cost, taken and given back, one by one and in bulk, on one CPU and on two?",
    expectation: "Peers: a pair in 20 to 30 ns (500 for the tree-based one) on one CPU and several times that on two, \
                  since all of them take one lock; linux some hundred ns, for it clears and maps the page as well.",
    baseline: page_alloc::PEERS,
    per: "page",
    notes: &[
        "`pair` takes one frame and gives it back; `bulk` takes 16384 frames, then gives them back newest first; only \
         the named half is timed. With two threads, time is per page of one thread.",
        "The peers take no account of who owns a frame, no watermark and no zone; none of them has a call for many \
         scattered frames, so bulk calls them one by one.",
    ],
    run,
    appendix: None,
};

/// Frames that the allocators manage: 4 GiB.
const FRAMES: usize = 1 << 20;

/// Frames of a bulk case.
const BULK: usize = 16384;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let spec = |operation, threads| PageAlloc {
        operation,
        threads,
        frames: runner.scale.pick(FRAMES / 8, FRAMES),
        count: match operation {
            Operation::Pair => runner.scale.pick(2_000, 500_000),
            Operation::BulkAlloc | Operation::BulkFree => BULK,
        },
        repeats: match operation {
            Operation::Pair => 1,
            Operation::BulkAlloc | Operation::BulkFree => runner.scale.pick(1, 8),
        },
        cpus: runner.cpus.clone(),
    };
    let operations = [Operation::Pair, Operation::BulkAlloc, Operation::BulkFree];
    let cases: Vec<Case<PageAlloc>> = operations
        .into_iter()
        .flat_map(|operation| [1, 2].map(|threads| case(spec(operation, threads))))
        .collect();
    runner.measure(experiment, &cases, &mut page_alloc::all())
}

fn case(spec: PageAlloc) -> Case<PageAlloc> {
    let operation = match spec.operation {
        Operation::Pair => "pair".to_owned(),
        Operation::BulkAlloc => format!("bulk-alloc/{}", spec.count),
        Operation::BulkFree => format!("bulk-free/{}", spec.count),
    };
    let name = if spec.threads == 1 { operation } else { format!("{operation}/{}threads", spec.threads) };
    let params = [
        ("frames", json!(spec.frames)),
        ("count", json!(spec.count)),
        ("repeats", json!(spec.repeats)),
        ("threads", json!(spec.threads)),
        ("oversubscribed", json!(spec.threads > spec.cpus.len())),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name, params, spec }
}
