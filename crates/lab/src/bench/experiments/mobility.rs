//! Do blocks stay whole while short- and long-lived pages are allocated and freed?

use crate::output::Sheet;
use serde_json::{Value, json};

use crate::bench::arms::mobility::{self, Mobilities, WHOLE};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
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
    ],
    own: &["quire"],
    apart: &[],
    goals: &[],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/mobility/"]],
    run,
    appendix: Some(blocks),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = runner.scale.pick(64 << 20, 1 << 30);
    let cases = [1, 4, 16].map(|rounds| case(Mobilities { bytes, rounds, seed: runner.seed }));
    runner.measure(experiment, &cases, &mut mobility::all())
}

fn case(spec: Mobilities) -> Case<Mobilities> {
    let params = [("bytes", json!(spec.bytes)), ("rounds", json!(spec.rounds))];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name: format!("{}rounds", spec.rounds), params, spec }
}

/// The counts of blocks.
fn blocks(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "case",
        "arm",
        "whole at first",
        "whole at the end",
        "with frames that stay",
        "frames that stay",
        "refused",
    ];
    let mut text = Sheet::new(&header.map(str::to_owned), 2);
    for row in rows.iter().filter(|row| row.metric == WHOLE.name) {
        let count = |name: &str| row.counters.get(name).map(u64::to_string).unwrap_or_default();
        text.add_row(vec![
            row.case.clone(),
            row.arm.clone(),
            count("whole_at_first"),
            row.median.map(|median| format!("{median:.0}")).unwrap_or_default(),
            count("pinned_blocks"),
            count("pinned_frames"),
            count("refused"),
        ]);
    }
    Ok(format!("blocks of 2 MiB\n{text}"))
}
