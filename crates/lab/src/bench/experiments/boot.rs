//! What does it cost to take over an empty machine, and how much of its memory do the tables take?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::boot::{self, Boot};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `boot`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "boot",
    question: "How long does it take to take over an empty machine, and how much memory do the tables take?",
    expectation: "quire: under a millisecond and under 0.02 % (200 ppm) at 1 TiB, since the record of a \
     whole free block is all zero and is not written.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "The memory is address space that was never touched, so a machine of 64 TiB fits on a smaller host.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new("an empty machine of 1 TiB is ready in under 1 ms", "quire", &["1TiB"], AtMost(1e6)),
        Goal::new("metadata under 0.02 % of 1 TiB", "quire", &["1TiB"], AtMost(200.0))
            .counter("metadata_ppm"),
    ],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/boot/"]],
    run,
    appendix: Some(metadata),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let sizes: &[u64] = runner.scale.pick(&[1, 1024], &[1, 16, 256, 1024, 16 * 1024]);
    let cases: Vec<Case<Boot>> = sizes.iter().map(|&gib| case(gib)).collect();
    runner.measure(experiment, &cases, &mut boot::all())
}

fn case(gib: u64) -> Case<Boot> {
    let name = if gib < 1024 { format!("{gib}GiB") } else { format!("{}TiB", gib / 1024) };
    let bytes = gib << 30;
    Case { name, params: [("bytes".to_owned(), json!(bytes))].into_iter().collect(), spec: Boot { bytes } }
}

/// The tables' share of memory.
fn metadata(rows: &[Row]) -> anyhow::Result<String> {
    let mut text = Sheet::new(&["case", "metadata", "share of memory"].map(str::to_owned), 1);
    for row in rows {
        if let (Some(frames), Some(ppm)) =
            (row.counters.get("metadata_frames"), row.counters.get("metadata_ppm"))
        {
            let (kib, share) = (frames * 4, *ppm as f64 / 10_000.0);
            text.add_row(vec![row.case.clone(), format!("{kib} KiB"), format!("{share:.4} %")]);
        }
    }
    Ok(text.to_string())
}
