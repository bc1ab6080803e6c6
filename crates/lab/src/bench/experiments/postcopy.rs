//! How long does a guest wait for memory that is still being transferred, by the size of the pieces?

use crate::output::Sheet;
use std::time::Duration;

use quire::hugetlb::HugeSize;
use serde_json::json;

use crate::bench::arms::postcopy::link::Wire;
use crate::bench::arms::postcopy::{self, IDLE, LARGE, LONGEST, Migration, P99, STALL, THERE};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured, Metric, TIME};
use crate::bench::goal::{Bound::AtMost, Goal, Over::BestOf};
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `postcopy`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "postcopy",
    question: "How long does a virtual CPU wait for a piece of memory that a migration has not transferred \
     yet, in pieces of 4 KiB, 2 MiB and 1 GiB, and how long until all memory has arrived and is mapped by \
     large leaves again?",
    expectation: "4KiB: 20 us of latency, 3.3 us on the wire, half of the time one piece of the stream \
     before it, and 1 to 2 us for event, mapping and wake-up. 2MiB: 1.7 ms of wire time, 1GiB: 0.86 s. All \
     has arrived after 0.86 s with any piece size, and is large 0.2 ms later. linux: as 4KiB with a trap, a \
     sleep and a wake-up, 5 to 15 us more; large 0.3 s later, since MADV_COLLAPSE copies.",
    baseline: &["2MiB"],
    per: "call",
    notes: &[
        "`time` is the median fetch of one migration, from the access that raises an event to its end; few \
         of these pieces are already on their way.",
        "The link is a model: one wire with a rate and a round trip (`--link-rate`, `--link-latency`). The \
         source sends requested pieces first, else the next piece of its stream, each to its end. All of a \
         piece's contents are written when the source begins to send it, as a device would.",
        "A virtual CPU touches one page after another, four times in five one of a hot tenth; the receiver \
         polls on its own processor.",
        "`4KiB` and `linux-polling` poll for a missing piece, `4KiB-sleeping` and `linux` sleep at once.",
        "The arms `linux` have the same link, threads and accesses, and no second-stage tables. Their pages are \
         single frames of a memfd, copied into folios of 2 MiB at the end; the other arms have huge pages from \
         the start.",
        "`large` is the time until Mm::collapse has mapped the largest leaves; pieces of 1 GiB need no \
         collapse. `idle` is the time in which the wire was idle before all pieces had arrived, with the \
         round trip of the last piece.",
    ],
    own: &["4KiB"],
    apart: &["2MiB", "1GiB", "4KiB-sleeping"],
    goals: &[
        Goal::new(
            "a fetch of 4 KiB: at most 1.2 of the link's own time (23.3 us)",
            "4KiB",
            &["1GiB/10Gbit"],
            AtMost(1.2 * 23_277.0),
        ),
        Goal::new("the same asleep: no longer than `linux`", "4KiB-sleeping", &["1GiB/10Gbit"], AtMost(1.0))
            .over(BestOf(&["linux"])),
    ],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/postcopy/"]],
    run,
    appendix: Some(over_the_link),
};

/// Nanoseconds of a round trip.
const ROUND_TRIP: u64 = 20_000;
/// Bits a second.
const RATE: u64 = 10_000_000_000;

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let (bytes, page) = runner.scale.pick((16 << 20, HugeSize::Size2M), (1 << 30, HugeSize::Size1G));
    // A fast wire would transfer a small guest before the guest has touched much.
    let bits = runner.link.rate.map_or(runner.scale.pick(RATE / 4, RATE), |bytes| bytes * 8);
    let wire = Wire { bits_per_second: bits, round_trip: runner.link.latency.unwrap_or(ROUND_TRIP) };
    let processors: Vec<usize> = runner.cpus.iter().copied().take(2).collect();
    let migration = Migration { bytes, page, wire, cpus: 1, seed: runner.seed, processors };
    runner.measure(experiment, &[case(migration)], &mut postcopy::all())
}

fn case(spec: Migration) -> Case<Migration> {
    let gigabits = spec.wire.bits_per_second as f64 / 1e9;
    let size = if spec.bytes >= 1 << 30 {
        format!("{}GiB", spec.bytes >> 30)
    } else {
        format!("{}MiB", spec.bytes >> 20)
    };
    let params = [
        ("bytes", json!(spec.bytes)),
        ("bits_per_second", json!(spec.wire.bits_per_second)),
        ("round_trip_ns", json!(spec.wire.round_trip)),
        ("virtual_cpus", json!(spec.cpus)),
        ("oversubscribed", json!(spec.processors.len() < spec.cpus + 1)),
    ];
    let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let latency = match spec.wire.round_trip {
        ROUND_TRIP => String::new(),
        other => format!("/{}", humantime::format_duration(Duration::from_nanos(other))),
    };
    Case { name: format!("{size}/{gigabits}Gbit{latency}"), params, spec }
}

/// Each arm's figures, and its median over the link's own time.
fn over_the_link(rows: &[Row]) -> anyhow::Result<String> {
    let median = |arm: &str, metric: Metric| {
        let wanted = |row: &&Row| row.arm == arm && row.metric == metric.name;
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let header = [
        "pieces",
        "fetch us",
        "over the link's own",
        "p99 us",
        "longest us",
        "stall ms",
        "idle ms",
        "there ms",
        "large ms",
    ];
    let mut text = Sheet::new(&header.map(str::to_owned), 1);
    for row in rows.iter().filter(|row| row.metric == TIME.name) {
        let Some(fetch) = row.median else { continue };
        let param = |name: &str| row.params.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let wire =
            Wire { bits_per_second: param("bits_per_second").max(1), round_trip: param("round_trip_ns") };
        let own = wire.latency(piece_of(&row.arm));
        let shown = |metric, unit: f64| {
            median(&row.arm, metric).map_or(String::new(), |value| format!("{:.2}", value / unit))
        };
        text.add_row(vec![
            row.arm.clone(),
            format!("{:.2}", fetch / 1e3),
            format!("{:.3}", fetch / own as f64),
            shown(P99, 1e3),
            shown(LONGEST, 1e3),
            shown(STALL, 1e6),
            shown(IDLE, 1e6),
            shown(THERE, 1e6),
            shown(LARGE, 1e6),
        ]);
    }
    Ok(format!("medians of all migrations\n{text}"))
}

fn piece_of(arm: &str) -> u64 {
    match arm {
        "2MiB" => 2 << 20,
        "1GiB" => 1 << 30,
        _ => 4 << 10,
    }
}
