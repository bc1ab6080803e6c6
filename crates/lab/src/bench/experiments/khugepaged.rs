//! How do a background collapser and splitter change a recorded program's memory over time?

use crate::output::Sheet;
use serde_json::{Map, json};

use crate::bench::arms::khugepaged::{self, Life};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::output::sparkline;

/// The experiment `khugepaged`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "khugepaged",
    question: "Which share of a recorded program's memory do leaves of 2 MiB map over time, and how much \
     untouched memory is resident, with small or large folios at faults, a collapser and a splitter?",
    expectation: "large: most is covered at once, and much memory is resident that was never touched. \
     collapse/511: nearly as much of both, later. collapse/64: less covered, next to nothing untouched. \
     split/409: untouched memory is freed, and coverage falls by the folios that were mostly empty.",
    baseline: &[khugepaged::FAULTS],
    per: "call",
    notes: &[
        "`time` is the sum of all recorded faults and calls on a hosted machine with its checks on; `background` is \
         collapsing and splitting.",
        "A page counts as full after a recorded store to it, and as zero before.",
        "The background runs 256 times, evenly over the events, and memory is sampled 32 times; time without \
         events does not count.",
        "Linux has no arm: it cannot replay a recording, and its khugepaged works at its own pace.",
    ],
    own: &["collapse"],
    apart: &["frames", "collapse-split", "large", "large-split"],
    goals: &[],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &["crates/lab/src/bench/arms/khugepaged/", "crates/replay/src/replay/"],
    ],
    run,
    appendix: Some(appendix),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let recordings: &[&'static str] = runner.scale.pick(&["gcc"], &["gcc", "python", "redis", "java"]);
    let limits: &[usize] = runner.scale.pick(&[64], &[511, 409, 64]);
    let cases = recordings.iter().flat_map(|&recording| {
        limits.iter().map(move |&max_ptes_none| {
            let params = [("recording", json!(recording)), ("max_ptes_none", json!(max_ptes_none))];
            let params =
                params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<Map<_, _>>();
            Case {
                name: format!("{recording}/{max_ptes_none}"),
                params,
                spec: Life { recording, max_ptes_none },
            }
        })
    });
    runner.measure(experiment, &cases.collect::<Vec<_>>(), &mut khugepaged::all())
}

/// The two counts at each moment.
fn over_time<'a>(row: &'a Row, name: &str) -> impl Iterator<Item = f64> + use<'a> {
    let prefix = format!("{name}_at_");
    row.counters.iter().filter(move |(name, _)| name.starts_with(&prefix)).map(|(_, count)| *count as f64)
}

/// The metrics side by side, and coverage and resident memory over time.
fn appendix(rows: &[Row]) -> anyhow::Result<String> {
    let metrics = [
        ("coverage %", "coverage", 1.0),
        ("at the end %", "coverage-end", 1.0),
        ("untouched %", "untouched", 1.0),
        ("resident MiB", "resident", 256.0),
        ("background ms", "background", 1e6),
    ];
    let counted = [("collapsed", "collapsed"), ("split", "split"), ("frames recovered", "frames_recovered")];
    let header = ["case", "arm"]
        .into_iter()
        .chain(metrics.map(|(shown, ..)| shown))
        .chain(counted.map(|(shown, _)| shown))
        .chain(["coverage over time", "resident over time"]);
    let mut text = Sheet::new(&header.map(str::to_owned).collect::<Vec<_>>(), 2);
    let timed = || rows.iter().filter(|row| row.metric == "time" && row.skipped.is_none());
    for row in timed() {
        let value = |metric: &str, unit: f64| {
            let same = |other: &&Row| {
                (&other.case, &other.arm, other.metric.as_str()) == (&row.case, &row.arm, metric)
            };
            let median = rows.iter().find(same).and_then(|row| row.median);
            median.map(|median| format!("{:.1}", median / unit)).unwrap_or_default()
        };
        // The arms of a case share one scale.
        let of_case = timed().filter(|other| other.case == row.case);
        let most = of_case.flat_map(|other| over_time(other, "resident_pages")).fold(0.0, f64::max);
        let touched = over_time(row, "touched_pages");
        let covered = over_time(row, "large_pages").zip(touched).map(|(large, all)| large / all.max(1.0));
        let mut cells = vec![row.case.clone(), row.arm.clone()];
        cells.extend(metrics.map(|(_, metric, unit)| value(metric, unit)));
        cells.extend(counted.map(|(_, name)| row.counters.get(name).map(u64::to_string).unwrap_or_default()));
        cells.push(sparkline(covered, 1.0));
        cells.push(sparkline(over_time(row, "resident_pages"), most));
        text.add_row(cells);
    }
    Ok(format!(
        "coverage and untouched are in % of the pages touched. Over time: coverage from 0 to all touched \
         pages, resident memory from 0 to the most of any arm\n{text}"
    ))
}
