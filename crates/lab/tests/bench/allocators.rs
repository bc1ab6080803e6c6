//! Small runs of single experiments around the page allocator. None changes a setting of the machine.

use std::collections::BTreeSet;

use lab::bench::published;
use lab::bench::row::Row;

/// The rows of a small run.
fn rows(arguments: &[&str]) -> Vec<Row> {
    let output = crate::output(&[&["--smoke", "--json", "-"], arguments].concat());
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let rows = crate::rows(&crate::text(&output.stdout));
    rows.iter().for_each(crate::check);
    rows
}

/// The cases of `page-alloc` whose frames are scattered over all memory.
pub(crate) const SCATTERED: [&str; 5] =
    ["full90", "full90/batch/1024", "full90/cold", "full90/mixed", "random-free/4GiB"];

/// Whether the arm of a row cannot run its case: one that searches an array of ranges.
pub(crate) fn leaves_out(row: &Row) -> bool {
    row.arm == "free-list" && SCATTERED.contains(&row.case.as_str())
}

#[test]
fn memory_with_scattered_frames_is_measured_with_every_arm_that_can() {
    let rows = [rows(&["page-alloc", "--only", "full90"]), rows(&["page-alloc", "--only", "4GiB"])].concat();
    let ours = |row: &&Row| row.arm == "quire" && row.metric == "time";
    let cases: BTreeSet<&str> = rows.iter().filter(ours).map(|row| row.case.as_str()).collect();
    assert_eq!(cases, BTreeSet::from(SCATTERED));
    for row in &rows {
        assert_eq!(row.skipped.is_some(), row.arm == "linux" || leaves_out(row), "{} {}", row.case, row.arm);
    }
    let of = |case: &str, name: &str| {
        let row = rows.iter().find(|row| row.case == case && row.arm == "quire");
        row.unwrap().counters[name]
    };
    assert_eq!(of("random-free/4GiB", "different"), 8192 / 8 * 7);
    assert_eq!(of("full90/batch/1024", "different"), 256);
    for case in ["full90", "full90/batch/1024", "full90/cold"] {
        // The watermark keeps some of the 8192 frames from ordinary requests.
        let in_use = of(case, "frames_in_use");
        assert!((8192 * 8 / 10..=8192 * 9 / 10).contains(&in_use), "{case}: {in_use}");
    }
}

#[test]
fn every_published_primitive_has_its_row() {
    let rows = rows(&["time-bench"]);
    let published = published::figures("pcp").unwrap();
    let published: Vec<_> = published.iter().filter(|figure| figure.source.contains("time_bench")).collect();
    assert!(!published.is_empty());
    for figure in published {
        let row = rows.iter().find(|row| row.case == figure.case && row.arm == "quire");
        let row = row.unwrap_or_else(|| panic!("{} is published and not measured", figure.case));
        assert_eq!(row.skipped.is_some(), row.case == "local_BH_disable_enable", "{}", row.case);
    }
}

#[test]
fn interrupts_inside_calls_are_timed_at_every_level() {
    let rows = rows(&["pcp-interrupt", "--only", "inside"]);
    let times: Vec<&Row> = rows.iter().filter(|row| row.metric == "time").collect();
    assert_eq!(times.len(), 3 * crate::OURS.len());
    for row in times {
        assert_eq!((&row.skipped, row.counters["interrupts"]), (&None, 64), "{} {}", row.case, row.arm);
        // With interrupts off no lock of the store is held below an interrupt.
        assert!(row.arm == "quire" || row.counters["refused"] == 0, "{} {}", row.case, row.arm);
        // Only the library's own lists have levels, and of 64 interrupts some came while one was in use.
        let inside = row.counters.get("inside").copied();
        assert_eq!(inside.is_some(), row.arm == "quire", "{} {}", row.case, row.arm);
        assert!(inside.is_none_or(|inside| (1..64).contains(&inside)), "{}: {inside:?}", row.case);
        let metrics = rows.iter().filter(|other| (&other.case, &other.arm) == (&row.case, &row.arm));
        let metrics: BTreeSet<&str> = metrics.map(|other| other.metric.as_str()).collect();
        assert_eq!(metrics.contains("between"), row.arm == "quire", "{} {}", row.case, row.arm);
        assert_eq!(metrics.contains("interrupted"), row.case != "inside/hard-in-soft", "{}", row.case);
    }
}
