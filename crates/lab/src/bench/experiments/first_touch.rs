//! How long does the first byte of a fresh page of 1 GiB take?

use crate::output::{Sheet, duration};
use serde_json::json;

use crate::bench::arms::clear::Setting;
use crate::bench::arms::gigantic::{self, First, What};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured, TIME};
use crate::bench::goal::{Bound::AtMost, Goal};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::stats::Summary;
use crate::bench::table;

/// The experiment `first-touch`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "first-touch",
    question: "How long does the first store to a fresh GiB of anonymous memory take, how long until all of \
     it is mapped, and how long to store a byte in each 2 MiB?",
    expectation: "First byte: as long as clearing 1 GiB where the fault clears it as a whole (15 to 70 ms; \
     linux as published 67 to 261 ms), under 200 us on demand. All of it on demand: hardly longer than as a \
     whole, and half as long with a second CPU.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "`byte`: the first store, from its beginning to its end. `all`: until all of the GiB is mapped and clear. \
         `each-2MiB`: until a byte in each 2 MiB was stored, in order of address. A fault of Quire has no trap.",
        "linux-thp gets pages of 2 MiB and touches each of them in `all`; the other arms end with one page \
         of 1 GiB.",
        "The policy was calibrated in this run, before the first case. All memory is dirty before.",
    ],
    own: &["quire-pool", "quire"],
    apart: &["quire-helped", "quire-ahead", "quire-pool-ahead"],
    goals: &[
        Goal::new("the first byte of a fresh page of 1 GiB: under 200 us", "quire", &["byte"], AtMost(2e5)),
        Goal::new(
            "the first byte of a pool's page of 1 GiB: under 200 us",
            "quire-pool",
            &["byte"],
            AtMost(2e5),
        ),
        Goal::new(
            "the first byte of a pool's page of 1 GiB that is known to be zero: under 10 us",
            "quire-pool-ahead",
            &["byte"],
            AtMost(1e4),
        ),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, code::GIGANTIC],
    run,
    appendix: Some(goals),
};

/// The goal, in nanoseconds.
const FIRST_BYTE_NS: f64 = 200_000.0;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let case = |(name, what): (&str, What)| Case {
        name: name.to_owned(),
        params: [("bytes".to_owned(), json!(1_u64 << 30))].into_iter().collect(),
        spec: First { what },
    };
    let cases = [("byte", What::Byte), ("all", What::All), ("each-2MiB", What::Each)].map(case);
    // A small run has every arm, which fill a GiB each, in one case alone.
    let cases = &cases[..runner.scale.pick(1, cases.len())];
    runner.measure(experiment, cases, &mut gigantic::firsts(&Setting::of(runner)?))
}

/// The latencies and their range, beside the goal.
fn goals(rows: &[Row]) -> anyhow::Result<String> {
    let header = ["arm", "first byte: median", "least", "most", "to reach", "all of it", "each 2 MiB"];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for arm in table::distinct(rows.iter().map(|row| row.arm.as_str())) {
        let of = |case: &str| {
            let wanted = |row: &&Row| row.arm == arm && row.case == case && row.metric == TIME.name;
            rows.iter().find(wanted).and_then(|row| Summary::of(&row.samples))
        };
        let shown = |case: &str, part: fn(&Summary) -> f64| {
            of(case).map(|summary| duration(part(&summary))).unwrap_or_default()
        };
        let wanted = match of("byte") {
            Some(byte) if arm.starts_with("quire") => {
                let reached = if byte.median < FIRST_BYTE_NS { "reached" } else { "missed" };
                format!("{}: {reached}", duration(FIRST_BYTE_NS))
            }
            _ => String::new(),
        };
        text.add_row([
            arm.to_owned(),
            shown("byte", |byte| byte.median),
            shown("byte", |byte| byte.min),
            shown("byte", |byte| byte.max),
            wanted,
            shown("all", |all| all.median),
            shown("each-2MiB", |each| each.median),
        ]);
    }
    Ok(format!("the first byte, and all of them\n{text}\n{}", counts::of_clearing(rows)))
}
