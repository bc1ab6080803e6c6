//! How do programs and a pool of huge pages slow each other down while the pool grows and shrinks?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::pool::beside::{self, Resizing, Running, SMALL};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured, Metric, TIME};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `hugetlb-churn`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "hugetlb-churn",
    question: "How long does it take to grow and shrink a pool of 2 MiB pages while two CPUs fault and unmap \
     small pages, and how long do these take?",
    expectation: "in-block: a request takes as long beside the workers as alone, and does not slow them. \
     full and batched: some ms a request, for which the worker on the same processor waits. per-page: a \
     broadcast for each page interrupts both workers. linux-saving: as batched, with the kernel's own work \
     on top.",
    baseline: &["full"],
    per: "page",
    notes: &[
        "`churn`: resizer and workers; `alone`: the resizer only; `quiet`: the workers only, with `time` \
         that of a small page.",
        "`time` is the time for each page of the pool in each request, `ran` the CPU time of the resizer's \
         thread in it. `small` is for each 4 KiB page of the workers: its fault and its share of mmap and \
         munmap; `small-apart` that of the worker that has a processor to itself.",
        "Three threads run on two processors: the resizer shares the first worker's. It sleeps 1 ms after \
         each request, so the scheduler runs it first: a request shorter than a turn is not preempted; a \
         longer one alternates with the worker, which counts in `time` and not in `ran`. A thread that is \
         preempted while it holds a lock keeps others waiting.",
        "`mask-tail` lets no grace period pass for pages of 2 MiB, the only ones here.",
        "Quire's workers take no trap, linux's do: compare the growth from `quiet` to `churn`.",
        "`ipis`, `broadcasts` and `regions` are counts of one repetition. `regions` of 2 MiB are the \
         workers' output, which grows with the duration; `ipis` include those of the workers' flushes.",
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
            "crates/lab/src/bench/arms/churn/pieces.rs",
            "crates/replay/src/host/memory.rs",
            "crates/replay/src/host/thp.rs",
        ],
    ],
    run,
    appendix: Some(felt),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let pages = runner.scale.pick(20, 1000);
    let cycles = runner.scale.pick(2, 40);
    let regions = runner.scale.pick(4, 200);
    let cases = [Running::All, Running::Resizer, Running::Workers].map(|running| {
        let processors: Vec<usize> = runner.cpus.iter().copied().take(2).collect();
        case(Resizing { pages, cycles, regions, running, processors })
    });
    runner.measure(experiment, &cases, &mut beside::all())
}

fn case(spec: Resizing) -> Case<Resizing> {
    let name = match spec.running {
        Running::All => format!("churn/{}", spec.pages),
        Running::Resizer => format!("alone/{}", spec.pages),
        Running::Workers => "quiet".to_owned(),
    };
    let params = [
        ("huge_pages", json!(spec.pages)),
        ("cycles", json!(spec.cycles)),
        ("oversubscribed", json!(spec.running == Running::All || spec.processors.len() < 2)),
    ];
    let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Case { name, params, spec }
}

/// How each side slows the other, and the counts.
fn felt(rows: &[Row]) -> anyhow::Result<String> {
    let median = |case: &str, arm: &str, metric: Metric| {
        let wanted = |row: &&Row| row.case.starts_with(case) && row.arm == arm && row.metric == metric.name;
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let over = |value: Option<f64>, base: Option<f64>| match value.zip(base) {
        Some((value, base)) => format!("{:.2}", value / base),
        None => String::new(),
    };
    let header = ["arm", "resize: churn / alone", "small: churn / quiet", "small-apart: churn / quiet"];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for arm in table::distinct(rows.iter().map(|row| row.arm.as_str())) {
        let of_both = |metric| over(median("churn", arm, metric), median("quiet", arm, metric));
        text.add_row(vec![
            arm.to_owned(),
            over(median("churn", arm, TIME), median("alone", arm, TIME)),
            of_both(SMALL),
            of_both(beside::APART),
        ]);
    }
    Ok(format!(
        "times beside the others over those without\n{text}\n{}",
        counts::of_pools(rows, "repetition")
    ))
}
