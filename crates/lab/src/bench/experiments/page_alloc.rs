//! What does it cost to allocate and free a page frame?

use crate::output::Sheet;
use serde_json::{Value, json};

use crate::bench::arms::page_alloc::{self, Back, Crowded, Half, Operation, PageAlloc, Timed};
use crate::bench::code;
use crate::bench::experiment::{ALLOC, CYCLES, Case, Experiment, FREE, Measured, Metric, TIME};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::{self, BestOf},
};
use crate::bench::ours::guards;
use crate::bench::published;
use crate::bench::row::Row;
use crate::bench::runner::{Runner, Scale};

/// The experiment `page-alloc`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "page-alloc",
    question: "What does one page frame cost, allocated and freed: in batches, in bulk, across CPUs, in full memory?",
    expectation: "Peers: a pair in 20 to 30 ns (500 for the tree-based one) on one CPU and several times \
     that on two, since all calls take one lock. linux: some hundred ns, since it clears and maps the page \
     too. quire: at most 0.6 of irq-off in every batch and never slower than task-only.",
    baseline: page_alloc::PEERS,
    per: "page",
    notes: &[
        "`batch/N` allocates N frames one by one and frees them one by one in the same order: the published \
         sweep. `alloc` and `free` are its halves, timed in a second pass; below 16 pages they are only an \
         indication. In `batch`, `bulk` and `single` one untimed batch warms the caches, since the arms take \
         turns.",
        "`pair` allocates one folio and frees it (`/order1` to `/order8`, `pair-2MiB`: folios of that order). `bulk` \
         allocates 16384 frames by one call, `single` by a call for each; they are freed newest first, or in random \
         order (`random-free`); only the named half is timed.",
        "`cross-free`: one CPU allocates, the other frees, 64 frames handed over at a time and at most 1024 on the \
         way; `ring` is the same without frames. `few-free`: all CPUs allocate, and one of them frees for all, as a \
         purging thread of a user-space allocator does; `time` is wall time over all pages there.",
        "`full90`: ordinary requests allocate all frames they can, and a random tenth is freed; `empty` is a \
         pair in the empty memory. `full90/mixed` is a trace of orders 0 to 9, each call counted with the \
         shortest of six replays. `near-exhaustion`: requests that may take the reserve have allocated all \
         frames but 8.",
        "`full90/batch` is a sweep of batches that no list can hold, in the memory of `full90`. `full90/cold` frees a \
         random frame of it and allocates one, and reads 8 MiB of other memory before each of these calls, so that \
         nothing of the allocator is in the two near caches. `random-free/4GiB` allocates seven eighths of the memory \
         one by one and times their frees in random order.",
        "With several threads, `time` is the time of one CPU: wall time, times the CPUs used, over all pages.",
        "`owned-blocks` checks nothing: no double free, no watermark, no zone. The links and the state of a frame are in three \
         arrays, so in up to three cache lines, where Linux's `struct page` is in one. Its lists \
         hold at most 2048 frames, where Linux adapts that to the load. The goals about peers leave it out.",
        "The peers keep no owner of a frame, no watermark and no zone. None has a bulk call for scattered \
         frames, so `bulk` calls them for each frame. What Quire, `buddy-slab-allocator` and `frame-alloc` keep in the \
         managed memory is in huge pages of the host, as a kernel's is; what `buddy_system` keeps is on the heap, in \
         pages of 4 KiB.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new("a pair of order 0: 4 times as fast as the best peer", "quire", &["pair"], Times(4.0))
            .over(BestOf(page_alloc::PEERS)),
        Goal::new("a pair of order 0: under 8 cycles", "quire", &["pair"], AtMost(8.0)).metric(CYCLES.name),
        Goal::new(
            "a pair of order 0 by two threads: within 10 % of one",
            "quire",
            &["pair/2threads"],
            AtMost(1.1),
        )
        .over(Over::Case("pair")),
        Goal::new(
            "a batch of 16384: allocated in under 2.5 ns a page",
            "quire",
            &["batch/16384", "batch/16384/2threads"],
            AtMost(2.5),
        )
        .metric(ALLOC.name),
        Goal::new(
            "a batch of 16384: freed in under 2.5 ns a page",
            "quire",
            &["batch/16384", "batch/16384/2threads"],
            AtMost(2.5),
        )
        .metric(FREE.name),
        Goal::new(
            "a batch of 16384 by two threads: within 15 % of one",
            "quire",
            &["batch/16384/2threads"],
            AtMost(1.15),
        )
        .over(Over::Case("batch/16384")),
        Goal::new(
            "one CPU allocates, another frees: under 15 ns a page",
            "quire",
            &["cross-free/2threads"],
            AtMost(15.0),
        ),
        Goal::new(
            "all CPUs allocate, one frees: at most 1.0 of `owned-blocks`",
            "quire",
            // With more threads than CPUs, the scheduler decides how long a lock's holder takes.
            &["few-free/2threads"],
            AtMost(1.0),
        )
        .over(BestOf(&["owned-blocks"])),
        Goal::new(
            "bulk calls for 16384 frames: under 1.5 ns a frame",
            "quire",
            &["bulk-alloc/16384", "bulk-free/16384"],
            AtMost(1.5),
        ),
        Goal::new(
            "16384 frames freed in random order: under 5 ns a frame",
            "quire",
            &["random-free/16384", "random-free/16384/bulk"],
            AtMost(5.0),
        ),
        Goal::new("every batch: at most 0.6 of `irq-off`", "quire", &["batch/*"], AtMost(0.6))
            .over(BestOf(&["irq-off"])),
        Goal::new("every batch: never slower than `task-only`", "quire", &["batch/*"], AtMost(1.0))
            .over(BestOf(&["task-only"])),
        Goal::new("90 % full: a pair within 1.5 of the empty machine", "quire", &["full90"], AtMost(1.5))
            .over(Over::Metric("empty")),
        Goal::new(
            "90 % full: the longest call of a round takes at most 5 us (median of the rounds)",
            "quire",
            &["full90/mixed"],
            AtMost(5e3),
        )
        .metric("longest"),
        Goal::new(
            "a pair of order 9: under 5 ns",
            "quire",
            &["pair-2MiB", "pair-2MiB/2threads"],
            AtMost(5.0),
        ),
        Goal::new(
            "a pair of order 9: faster than every peer",
            "quire",
            &["pair-2MiB", "pair-2MiB/2threads"],
            Times(1.0),
        )
        .over(BestOf(page_alloc::PEERS)),
        Goal::new("a pair of orders 1 to 8: under 15 ns", "quire", &["pair/order*"], AtMost(15.0)),
        Goal::new("no request is refused while a frame is free", "quire", &["near-exhaustion"], AtMost(0.0))
            .counter("left"),
    ],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/page_alloc/"]],
    run,
    appendix: Some(sweep_beside_published),
};

/// Frames that the allocators manage: 4 GiB.
const FRAMES: usize = 1 << 20;

/// Frames of a bulk case, and of the largest batch.
const BULK: usize = 16384;

/// The same in a smoke run: still several times what a list of a CPU keeps.
const SMOKE_BULK: usize = 1024;

/// Frames that the allocators manage: in a smoke run, twice what four threads hold at most.
fn frames(scale: Scale) -> usize {
    scale.pick(2 * 4 * SMOKE_BULK, FRAMES)
}

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let cases: Vec<Case<PageAlloc>> =
        shapes(runner.scale).into_iter().map(|shape| case(shape, runner)).collect();
    runner.measure(experiment, &cases, &mut page_alloc::all())
}

/// The name of a case, its operation, threads and frames held at once.
struct Shape {
    name: String,
    operation: Operation,
    threads: usize,
    batch: usize,
}

fn shapes(scale: Scale) -> Vec<Shape> {
    let shape = |name: &str, operation, threads, batch| {
        let name = if threads == 1 { name.to_owned() } else { format!("{name}/{threads}threads") };
        Shape { name, operation, threads, batch }
    };
    let half = |timed, back, bulk| Operation::Half(Half { timed, back, bulk });
    let most = scale.pick(SMOKE_BULK, BULK);
    let mut shapes = Vec::new();
    for threads in [1, 2, 4] {
        shapes.push(shape("pair", Operation::Pair(0), threads, 1));
    }
    for (name, operation) in [
        (format!("bulk-alloc/{most}"), half(Timed::Alloc, Back::NewestFirst, true)),
        (format!("bulk-free/{most}"), half(Timed::Free, Back::NewestFirst, true)),
        (format!("single-alloc/{most}"), half(Timed::Alloc, Back::NewestFirst, false)),
        (format!("single-free/{most}"), half(Timed::Free, Back::NewestFirst, false)),
        (format!("random-free/{most}"), half(Timed::Free, Back::Random, false)),
        (format!("random-free/{most}/bulk"), half(Timed::Free, Back::Random, true)),
    ] {
        shapes.extend([1, 2].map(|threads| shape(&name, operation, threads, most)));
    }
    for threads in [1, 2, 4] {
        let sweep = |batch: usize| shape(&format!("batch/{batch}"), Operation::Sweep, threads, batch);
        // Every batch sets up its own memory, which a smoke run does not do for all of them.
        let powers = (0..=most.ilog2()).filter(|power| !scale.smoke || power % 5 == 0);
        shapes.extend(powers.map(|power| sweep(1 << power)));
    }
    shapes.extend((1..=8).map(|order| shape(&format!("pair/order{order}"), Operation::Pair(order), 1, 1)));
    shapes.extend([1, 2].map(|threads| shape("pair-2MiB", Operation::Pair(9), threads, 1)));
    shapes.push(shape("cross-free", Operation::Cross, 2, 1));
    shapes.extend([2, 4].map(|threads| shape("few-free", Operation::FewFree, threads, 1)));
    shapes.push(shape("full90", Operation::Crowded(Crowded::Pairs), 1, 1));
    shapes.push(shape("full90/mixed", Operation::Crowded(Crowded::Mixed), 1, 1));
    shapes.push(shape(&format!("full90/batch/{most}"), Operation::Crowded(Crowded::Batches), 1, most));
    shapes.push(shape("full90/cold", Operation::Crowded(Crowded::Cold), 1, 1));
    shapes.push(shape("random-free/4GiB", Operation::Crowded(Crowded::Emptied), 1, 1));
    shapes.push(shape("near-exhaustion", Operation::Crowded(Crowded::Scarce), 1, 1));
    // Cases with the same number of threads use the same machine.
    shapes.sort_by_key(|shape| shape.threads);
    shapes
}

/// The frames that a case holds at once (or its pairs, or calls), and its repeats.
fn amount(shape: &Shape, runner: &Runner) -> (usize, usize) {
    let scale = runner.scale;
    match shape.operation {
        Operation::Pair(0) if shape.threads == 1 => (scale.pick(2_000, 200_000), 1),
        Operation::Pair(0) => (scale.pick(500, 50_000), 1),
        Operation::Pair(_) => (scale.pick(500, 30_000), 1),
        Operation::Sweep => (shape.batch, (scale.pick(512, BULK) / shape.batch).max(1)),
        Operation::Half(_) => (shape.batch, scale.pick(1, 4)),
        Operation::Cross | Operation::FewFree => (scale.pick(5_000, 200_000), 1),
        Operation::Crowded(Crowded::Mixed) => (scale.pick(500, 4_000), 1),
        Operation::Crowded(Crowded::Batches) => (shape.batch / scale.pick(4, 1), scale.pick(1, 4)),
        Operation::Crowded(Crowded::Cold) => (scale.pick(16, 128), 1),
        Operation::Crowded(Crowded::Emptied) => (frames(scale) / 8 * 7, 1),
        Operation::Crowded(_) => (scale.pick(1_000, 100_000), 1),
    }
}

fn case(shape: Shape, runner: &Runner) -> Case<PageAlloc> {
    let (count, repeats) = amount(&shape, runner);
    let spec = PageAlloc {
        operation: shape.operation,
        threads: shape.threads,
        frames: frames(runner.scale),
        count,
        repeats,
        cpus: runner.cpus.clone(),
    };
    let params = [
        ("frames", json!(spec.frames)),
        ("count", json!(spec.count)),
        ("repeats", json!(spec.repeats)),
        ("threads", json!(spec.threads)),
        ("oversubscribed", json!(spec.threads > spec.cpus.len())),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name: shape.name, params, spec }
}

/// The sweep of one thread, Quire's arms beside the published ones, each relative to its own batch 1.
fn sweep_beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let figures = published::figures("pcp")?;
    let variants = ["vanilla", "irqsafe"];
    let mut header = vec!["batch".to_owned(), "half".to_owned()];
    header.extend(guards::NAMES.iter().map(|arm| format!("{arm} here, ns")));
    header.push("quire / irq-off".to_owned());
    header.extend(variants.iter().map(|variant| format!("published, {variant}")));
    header.push("irqsafe / vanilla".to_owned());
    let mut text = Sheet::new(&header, 2);
    for batch in (0..=BULK.ilog2()).map(|power| 1_usize << power) {
        for (half, metric) in [("alloc", ALLOC), ("free", FREE), ("total", TIME)] {
            let here = |arm: &str| median(rows, &format!("batch/{batch}"), arm, metric);
            let wanted = format!("{half} order-0 batch {batch}");
            let there = |variant: &str| {
                let found = figures.iter().find(|figure| figure.variant == variant && figure.case == wanted);
                found.and_then(published::Published::number)
            };
            let mut cells = vec![batch.to_string(), half.to_owned()];
            cells.extend(guards::NAMES.iter().map(|arm| shown(here(arm))));
            cells.push(shown(over(here("quire"), here("irq-off"))));
            cells.extend(variants.iter().map(|variant| shown(there(variant))));
            cells.push(shown(over(there("irqsafe"), there("vanilla"))));
            text.add_row(cells);
        }
    }
    let source = "Gorman 2017 (unit as published: not stated, probably cycles)";
    Ok(format!("the sweep with one thread beside the published one; published: {source}\n{text}"))
}

fn median(rows: &[Row], case: &str, arm: &str, metric: Metric) -> Option<f64> {
    let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == metric.name;
    rows.iter().find(wanted).and_then(|row| row.median)
}

fn over(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).filter(|(_, other)| *other > 0.0).map(|(one, other)| one / other)
}

fn shown(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.2}")).unwrap_or_default()
}
