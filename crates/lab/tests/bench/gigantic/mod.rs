//! What the experiments on folios of 1 GiB must give in a small run: every case and arm, the exact work, and differences that no
//! disturbance can hide.

use std::collections::BTreeSet;

use lab::bench::experiments::ALL;
use lab::bench::row::Row;
use lab::host::threads::allowed_cpus;

use crate::report::row;

pub(crate) fn check(rows: &[Row]) {
    let of = |experiment: &str| -> Vec<&Row> {
        rows.iter().filter(|row| row.experiment == experiment && row.metric == "time").collect()
    };
    check_first_touch(&of("first-touch"));
    check_mlock(rows, &of("mlock-gigantic"));
}

fn names(items: impl Iterator<Item = impl AsRef<str>>) -> BTreeSet<String> {
    items.map(|item| item.as_ref().to_owned()).collect()
}

/// The median of an arm in a case.
fn median(rows: &[&Row], case: &str, arm: &str) -> Option<f64> {
    rows.iter().find(|row| row.case == case && row.arm == arm).and_then(|row| row.median)
}

/// The kernel may have no large page; a helper needs a processor.
fn check_skips(rows: &[&Row]) {
    for row in rows {
        let helper =
            row.arm == "quire-helped" || row.params.get("threads").is_some_and(|threads| threads == 2);
        let may = row.arm.starts_with("linux") || helper && allowed_cpus().len() < 2;
        assert!(
            row.skipped.is_none() || may,
            "{} {} {}: {:?}",
            row.experiment,
            row.case,
            row.arm,
            row.skipped
        );
    }
}

fn check_first_touch(rows: &[&Row]) {
    assert_eq!(
        names(rows.iter().map(|row| &row.arm)),
        names(
            [
                "linux",
                "linux-thp",
                "quire",
                "quire-ahead",
                "quire-helped",
                "quire-pool",
                "quire-pool-ahead",
                "whole"
            ]
            .iter()
        )
    );
    assert_eq!(names(rows.iter().map(|row| &row.case)), names(["byte"].iter()));
    check_skips(rows);
    for row in rows.iter().filter(|row| row.skipped.is_none()) {
        assert_eq!(row.counters["pieces"], 1, "{} {}", row.case, row.arm);
        // A helper may be clearing a piece that is not mapped yet.
        if row.arm != "quire-helped" {
            super::clears::cleared_once(row);
        }
    }
    // A hundredth of the work comes before the first byte: a tenth of the time leaves room for whatever else runs here.
    let (whole, byte) = (median(rows, "byte", "whole").unwrap(), median(rows, "byte", "quire").unwrap());
    assert!(byte < whole / 10.0, "the first byte after {byte} ns, and all of the GiB after {whole}");
}

fn check_mlock(all: &[Row], rows: &[&Row]) {
    let arms = names(rows.iter().map(|row| &row.arm));
    let expected =
        ["linux", "quire", "quire-pool", "quire-saving", "quire-on-demand", "string", "contiguous", "movnti"];
    assert!(arms.is_superset(&names(expected.iter())) && arms.len() == expected.len() + 1, "{arms:?}");
    let mut expected = BTreeSet::new();
    for threads in [1, 2].into_iter().filter(|&threads| threads <= allowed_cpus().len()) {
        let on = if threads == 1 { "" } else { "/2threads" };
        for case in ["16MiB", "every1", "none"] {
            expected.extend([format!("{case}{on}"), format!("{case}{on}/loaded")]);
        }
    }
    assert_eq!(names(rows.iter().map(|row| &row.case)), expected);
    check_skips(rows);
    for row in rows.iter().filter(|row| row.skipped.is_none()) {
        let (name, threads) = (format!("{} {}", row.case, row.arm), row.params["threads"].as_u64().unwrap());
        assert_eq!(row.counters["pages"], threads * 8, "{name}");
        super::clears::cleared_once(row);
        let loaded = row.params["loaded"] == true;
        assert_eq!(loaded || row.arm == "linux", !row.counters.contains_key("points"), "{name}");
        // Eight pages of 2 MiB: one point behind each, and those within.
        let wanted = match row.params["reschedule_pages"].as_u64() {
            Some(pages) => Some(512 / pages),
            None => row.case.starts_with("none").then_some(1),
        };
        if let (Some(points), Some(wanted)) = (row.counters.get("points"), wanted) {
            // A task that gets pages which another has cleared passes one after every second page.
            let others = if threads > 1 { threads * 8 / 2 } else { 0 };
            let passed = threads * 8 * wanted;
            assert!((passed..=passed + others).contains(points), "{name}: {points} points, not {passed}");
        }
        let has = |metric: &str| {
            all.iter().any(|one| one.case == row.case && one.arm == row.arm && one.metric == metric)
        };
        assert_eq!(has("others-waited"), loaded, "{name}");
        for metric in ["longest-stretch", "longest-disturbed", "longest-idle"] {
            assert_eq!(has(metric), !loaded && row.arm != "linux", "{name} {metric}");
        }
    }
    let longest = |case: &str| {
        let wanted = |row: &&Row| row.case == case && row.arm == "string" && row.metric == "longest-stretch";
        all.iter().find(wanted).and_then(|row| row.samples.iter().copied().reduce(f64::min)).unwrap()
    };
    // 4 KiB between two points, and 2 MiB.
    let (short, long) = (longest("every1"), longest("none"));
    assert!(short < long, "{short} ns with a point after each frame, {long} ns with none");
}

/// The published case locks pages of a pool, so the goal is about the pool's arm alone.
#[test]
fn the_goal_beside_the_published_sweep_is_about_pages_of_a_pool() {
    let mlock = ALL.iter().find(|experiment| experiment.name == "mlock-gigantic").unwrap();
    let said = |pool: f64, anonymous: f64| {
        let of = |arm: &str, longest: f64| Row {
            median: Some(longest),
            ..row("mlock-gigantic", "1GiB", arm, "longest-stretch", &[longest])
        };
        mlock.appendix.unwrap()(&[of("quire-pool", pool), of("quire", anonymous)]).unwrap()
    };
    for (pool, anonymous, word) in [(5e4, 5e5, "reached"), (5e5, 5e4, "missed")] {
        let text = said(pool, anonymous);
        let verdicts: Vec<&str> =
            ["reached", "missed"].into_iter().filter(|word| text.contains(&format!(": {word}"))).collect();
        assert_eq!(verdicts, [word], "{text}");
    }
}
