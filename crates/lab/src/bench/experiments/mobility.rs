//! Do blocks stay whole while short- and long-lived pages are allocated and freed?

use crate::output::Sheet;
use serde_json::{Value, json};

use crate::bench::arms::mobility::{self, Load, Mobilities, UNTAINTED, WHOLE};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtLeast, Goal};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `mobility`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mobility",
    question: "How many 2 MiB blocks are whole and free after N rounds of short- and long-lived allocations?",
    expectation: "no-grouping: hardly any after a few rounds, since two requests in a thousand are never \
     freed and land in any block. quire: all but the few blocks that hold those.",
    baseline: &["no-grouping"],
    per: "call",
    notes: &[
        "A round makes one request for every eight frames of memory: movable folios of orders 0 to 3, which \
         fill three quarters of it and are freed in random order; unmovable and reclaimable frames, freed \
         after a while; two in a thousand unmovable ones for good. At the end all others are freed and the \
         lists drained.",
        "`storm`: movable folios fill 64 GiB until a request is refused, and a random half of them is freed; the same \
         once more, after which few blocks are whole. Then unmovable and reclaimable frames are allocated for good until they \
         are 2 % of memory, while movable folios come and go; `time` is that of these requests. An area of 1 GiB is \
         untainted if none of those frames is in it: a page of 1 GiB can then be had by moving what else is in it, \
         which the row does not try. (Van Riel, \"1GB superpageblock memory allocation\", RFC of April 2026 for Linux: under \
         20 of 238 areas tainted, 92 % untainted. That machine had 256 GiB, all in use by a fuzzer of system calls: another \
         load, so the two shares do not compare.)",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[Goal::new(
        "a storm of unmovable requests on aged memory: at least 95 % of the areas of 1 GiB untainted",
        "quire",
        &["storm"],
        AtLeast(95.0),
    )
    .metric(UNTAINTED.name)],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/mobility/"]],
    run,
    appendix: Some(blocks),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = runner.scale.pick(64 << 20, 1 << 30);
    let of = |bytes, load| case(Mobilities { bytes, load, seed: runner.seed });
    let mut cases = Vec::from([1, 4, 16].map(|rounds| of(bytes, Load::Rounds(rounds))));
    // Areas of 1 GiB have one size in a small run too.
    let bytes = runner.scale.pick(4 << 30, 64 << 30);
    cases.push(of(bytes, Load::Storm));
    runner.measure(experiment, &cases, &mut mobility::all())
}

fn case(spec: Mobilities) -> Case<Mobilities> {
    let (name, rounds) = match spec.load {
        Load::Rounds(rounds) => (format!("{rounds}rounds"), json!(rounds)),
        Load::Storm => ("storm".to_owned(), Value::Null),
    };
    let params = [("bytes", json!(spec.bytes)), ("rounds", rounds)];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name, params, spec }
}

/// The share of untainted areas, where there are several.
fn untainted(rows: &[Row], of: &Row) -> String {
    let wanted = |row: &&Row| row.metric == UNTAINTED.name && row.case == of.case && row.arm == of.arm;
    let share = rows.iter().find(wanted).and_then(|row| row.median);
    share.map(|share| format!("{share:.1}")).unwrap_or_default()
}

/// The counts of blocks.
fn blocks(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "case",
        "arm",
        "whole at first",
        "whole before the storm",
        "whole at the end",
        "with frames that stay",
        "frames that stay",
        "untainted areas, %",
        "refused",
    ];
    let mut text = Sheet::new(&header.map(str::to_owned), 2);
    for row in rows.iter().filter(|row| row.metric == WHOLE.name) {
        let count = |name: &str| row.counters.get(name).map(u64::to_string).unwrap_or_default();
        text.add_row(vec![
            row.case.clone(),
            row.arm.clone(),
            count("whole_at_first"),
            count("whole_before_storm"),
            row.median.map(|median| format!("{median:.0}")).unwrap_or_default(),
            count("pinned_blocks"),
            count("pinned_frames"),
            untainted(rows, row),
            count("refused"),
        ]);
    }
    Ok(format!("blocks of 2 MiB\n{text}"))
}
