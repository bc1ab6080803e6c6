//! What does it cost to mlock pages of 1 GiB, and how long do other threads wait meanwhile?

use crate::output::{Sheet, duration};
use procfs::Current;
use quire::clear::Stretch;
use quire::limits::CLEAR_POINT_NS;
use serde_json::json;

use super::clear::extent_name;
use crate::bench::arms::clear::Setting;
use crate::bench::arms::gigantic::{self, DISTURBED, IDLE, LONGEST, Locking, PER_GIB, WAITED};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{Bound::AtMost, Goal};
use crate::bench::published;
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::stats::mean_and_deviation;
use crate::bench::table;

const GIB: u64 = 1 << 30;
/// Bytes that stay free beside the memory that the running kernel and Quire lock, each its own, and Quire's
/// tables.
const LEFT_FREE: u64 = 5 * GIB;
/// Pages of 4 KiB between two reschedule points, as published; then none at all.
const SWEEP: [u64; 7] = [1, 16, 64, 512, 2048, 8192, 32768];

/// The experiment `mlock-gigantic`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mlock-gigantic",
    question: "How long does mlock of fresh pages of 1 GiB take, by the number of 4 KiB pages between two \
     reschedule points, alone and beside a busy thread on the same processors?",
    expectation: "A GiB takes as long as clearing it, a half to a quarter of linux. Distances beyond some \
     dozen pages gain nothing; short ones cost a fence for each stretch. Beside a busy thread it takes twice \
     as long; the busy thread waits for one turn and one stretch, without points for the whole call.",
    baseline: &["linux", "string"],
    per: "call",
    notes: &[
        "`2GiB` locks that much by one call; `/2threads`: each of two threads locks as much, in one address space; \
         `/loaded`: a busy thread on each of the same processors takes turns of 1 ms.",
        "`every64` and so on: a reschedule point after so many pages of 4 KiB; `none`: none within a page of \
         1 GiB. Other cases have the calibrated policy's stretch, and so do the arms of one kernel.",
        "In one address space the second call waits for the lock until the first has cleared its page, as on \
         Linux: more threads gain little, unless pages are cleared in their pool or piece by piece.",
        "Under `/loaded` Quire's reschedule points yield (sched_yield, after a turn of 1 ms); otherwise they \
         only test a flag. Without preemption (`chrt -f`) other threads run only at these points.",
        "`longest-stretch` is the longest repeatable time between two points: three more passes read the \
         clock at each point, and each stretch counts with the median of its passes. `longest-disturbed` is \
         the longest of one pass; `longest-idle` is the longest gap between two clock reads of an idle \
         thread, which the machine takes from any thread. `others-waited` is the longest wait of the busy \
         thread.",
    ],
    own: &["quire-pool", "quire"],
    apart: &["quire-on-demand", "quire-saving"],
    goals: &[Goal::new(
        "the longest repeatable stretch without a reschedule point: at most 100 us (median of the repetitions)",
        "quire-pool",
        &["1GiB", "2GiB", "4GiB", "1GiB/2threads"],
        AtMost(1e5),
    )
    .metric("longest-stretch")],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, code::GIGANTIC],
    run,
    appendix: Some(beside_published),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let setting = Setting::of(runner)?;
    let threads = |count: &usize| *count <= runner.cpus.len();
    let threads: Vec<usize> = [1, 2].into_iter().filter(threads).collect();
    let (page, bytes) = runner.scale.pick((2 << 20, 16 << 20), (1 << 30, 1 << 30));
    let case =
        |bytes: usize, threads, stretch, loaded| case(Locking { page, bytes, threads, stretch, loaded });
    let mut cases = Vec::new();
    for bytes in runner.scale.pick(vec![bytes], sizes()?) {
        cases.push(case(bytes, 1, None, false));
    }
    for &threads in &threads {
        // Only one size has the further cases, since a loaded run takes twice as long.
        let more = [(threads, false), (threads, true)].into_iter().filter(|more| *more != (1, false));
        cases.extend(more.map(|(threads, loaded)| case(bytes, threads, None, loaded)));
    }
    let mut measured = runner.measure(experiment, &cases, &mut gigantic::lockings(&setting, false))?;

    let stretches = SWEEP.iter().map(|pages| Stretch::of(pages * 4096)).collect::<Result<Vec<_>, _>>()?;
    let stretches: Vec<Stretch> = stretches.into_iter().chain([Stretch::ENDLESS]).collect();
    let of_sweep = |&stretch: &Stretch| {
        let of_threads =
            |&threads: &usize| [false, true].map(|loaded| case(bytes, threads, Some(stretch), loaded));
        threads.iter().flat_map(of_threads).collect::<Vec<_>>()
    };
    let kept = runner.scale.pick(vec![stretches[0], Stretch::ENDLESS], stretches.clone());
    let cases: Vec<_> = kept.iter().flat_map(of_sweep).collect();
    measured.rows.extend(runner.measure(experiment, &cases, &mut gigantic::lockings(&setting, true))?.rows);
    Ok(measured)
}

/// Powers of two of GiB up to 8, as far as twice as much and [`LEFT_FREE`] is available; 1 GiB in any case.
fn sizes() -> anyhow::Result<Vec<usize>> {
    let available = procfs::Meminfo::current()?.mem_available.unwrap_or(0);
    let fits = |gib: &u64| *gib == 1 || 2 * gib * GIB + LEFT_FREE <= available;
    Ok([1, 2, 4, 8].into_iter().filter(fits).map(|gib| (gib * GIB) as usize).collect())
}

fn case(spec: Locking) -> Case<Locking> {
    let mut name = match spec.stretch {
        None => extent_name(spec.bytes as u64),
        Some(Stretch::ENDLESS) => "none".to_owned(),
        Some(stretch) => format!("every{}", stretch.bytes() / 4096),
    };
    if spec.threads > 1 {
        name += &format!("/{}threads", spec.threads);
    }
    if spec.loaded {
        name += "/loaded";
    }
    let pages =
        spec.stretch.filter(|stretch| *stretch != Stretch::ENDLESS).map(|stretch| stretch.bytes() / 4096);
    let params = [
        ("page_bytes", json!(spec.page)),
        ("bytes", json!(spec.bytes)),
        ("threads", json!(spec.threads)),
        ("loaded", json!(spec.loaded)),
        ("reschedule_pages", json!(pages)),
    ];
    Case { name, params: params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(), spec }
}

/// The sweep beside the published one, and the longest stretches beside the goal.
fn beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let median = |case: &str, arm: &str, metric: &str| {
        let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == metric;
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let arms = table::distinct(rows.iter().map(|row| row.arm.as_str()));
    let cases = table::distinct(rows.iter().map(|row| row.case.as_str()));
    let mut header = vec!["case".to_owned()];
    header.extend(arms.iter().map(|arm| format!("{arm}, per GiB: median (mean ± standard deviation)")));
    header.push("published: nt, Broadwell, per GiB".to_owned());
    header.extend(arms.iter().filter(|arm| **arm != "linux").map(|arm| format!("{arm}: longest stretch")));
    header.push("to reach".to_owned());
    header.extend(["quire-pool: one pass, as it was", "idle"].map(str::to_owned));
    header.extend(arms.iter().map(|arm| format!("{arm}: others waited")));
    let mut text = Sheet::new(&header, 1);
    let published = published::figures("clear")?;
    let goal = CLEAR_POINT_NS as f64;
    for case in cases {
        let shown = |arm: &&str, metric: &str| median(case, arm, metric).map(duration).unwrap_or_default();
        let mut cells = vec![case.to_owned()];
        cells.extend(
            arms.iter().map(|arm| format!("{}{}", shown(arm, PER_GIB.name), spread(rows, case, arm))),
        );
        let of = |metric: &str| published_per_gib(&published, case, metric).map(duration);
        let [mean, deviation] = ["mean time", "stddev"].map(of);
        cells.push(mean.zip(deviation).map(|(mean, by)| format!("{mean} ± {by}")).unwrap_or_default());
        cells.extend(arms.iter().filter(|arm| **arm != "linux").map(|arm| shown(arm, LONGEST.name)));
        // The arm that does what the published case does, and that the goal is about.
        let own = median(case, "quire-pool", LONGEST.name).filter(|_| case.contains("iB"));
        cells.push(own.map_or_else(String::new, |own| {
            let reached = if own < goal { "reached" } else { "missed" };
            format!("{}: {reached}", duration(goal))
        }));
        cells.extend([&DISTURBED, &IDLE].map(|metric| shown(&"quire-pool", metric.name)));
        cells.extend(arms.iter().map(|arm| shown(arm, WAITED.name)));
        text.add_row(cells);
    }
    let published = [("string", "clear_page_erms"), ("streaming", "clear_page_nt")].map(|(way, variant)| {
        let figure = published.iter().find(|one| one.case == "per 1GiB page" && one.variant == variant);
        figure.map_or_else(String::new, |figure| format!("{way} {} {} each", figure.value, figure.unit))
    });
    Ok(format!(
        "nanoseconds for each GiB of all threads together; published (another machine: Broadwell, 512 GiB, \
         one thread): {}\n{text}\n{}",
        published.join(", "),
        counts::of_clearing(rows)
    ))
}

/// Mean and standard deviation of an arm's time for each GiB, as the published sweep gives them.
fn spread(rows: &[Row], case: &str, arm: &str) -> String {
    let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == PER_GIB.name;
    let of = rows.iter().find(wanted).and_then(|row| mean_and_deviation(&row.samples));
    of.map(|(mean, deviation)| format!(" ({} ± {})", duration(mean), duration(deviation))).unwrap_or_default()
}

/// The published mean time for a reschedule interval or its deviation, in nanoseconds for each of 512 GiB: one
/// thread, other hardware.
fn published_per_gib(figures: &[published::Published], case: &str, metric: &str) -> Option<f64> {
    let (case, variant) = case.strip_suffix("/loaded").map_or((case, "idle"), |case| (case, "stress"));
    let every = if case == "none" { "infinite" } else { case.strip_prefix("every")? };
    let name = format!("mlock 512GiB reschedule every {every} pages");
    let wanted = |figure: &&published::Published| {
        figure.case == name && figure.variant == variant && figure.metric == metric
    };
    figures.iter().find(wanted)?.number().map(|seconds| seconds * 1e9 / 512.0)
}
