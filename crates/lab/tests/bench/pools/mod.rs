//! What the experiments on pools of huge pages must give in a small run: every case and arm, and the exact work of each policy.

use std::collections::BTreeSet;

use lab::bench::row::Row;
use lab::host::threads::allowed_cpus;

const OURS: [&str; 5] = ["in-block", "full", "per-page", "batched", "mask-tail"];

/// Pages of 2 MiB of a page of 1 GiB.
const PARTS: u64 = 512;

pub(crate) fn check(rows: &[Row]) {
    check_resizes(rows);
    check_demotions(rows);
    check_churn(rows);
}

/// The rows of an experiment's times: every arm is there, and ours leave no case out.
fn times<'a>(rows: &'a [Row], experiment: &str, cases: &[&str]) -> Vec<&'a Row> {
    let rows: Vec<&Row> =
        rows.iter().filter(|row| row.experiment == experiment && row.metric == "time").collect();
    let arms: BTreeSet<&str> = rows.iter().map(|row| row.arm.as_str()).collect();
    assert_eq!(arms, OURS.into_iter().chain(["linux", "linux-saving"]).collect());
    let found: BTreeSet<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(found, cases.iter().copied().collect());
    let (ours, linux): (Vec<&Row>, Vec<&Row>) =
        rows.into_iter().partition(|row| OURS.contains(&row.arm.as_str()));
    ours.iter().for_each(|row| assert_eq!(row.skipped, None, "{} {}", row.case, row.arm));
    // What the running kernel cannot do, it says.
    let says = |row: &&Row| row.skipped.as_ref().is_none_or(|reason| reason.contains(' '));
    assert!(linux.iter().all(says));
    ours
}

/// What a demotion and a promotion cost under each policy, for each page of 1 GiB.
fn check_demotions(rows: &[Row]) {
    let cases = ["demote/2", "promote/2", "promote/2/scattered"];
    for row in times(rows, "demote", &cases) {
        let name = format!("{} {}", row.case, row.arm);
        let changed = row.params["changed"].as_u64().unwrap();
        let count = |name: &str| {
            let count = row.counters[name];
            assert!(count.is_multiple_of(changed), "{name}: {count}");
            count / changed
        };
        let (graces, flushes) = (count("grace_periods"), count("broadcasts"));
        let (entries, freed, needed) =
            (count("window_entries"), count("frames_freed"), count("frames_needed"));
        let written = count("descriptors_written");
        // Where all tails are the same, only pages of 1 GiB wait, and only to join.
        let waits = match row.arm.as_str() {
            "mask-tail" => u64::from(!row.case.starts_with("demote")),
            _ => flushes,
        };
        assert_eq!((graces, row.counters["leaves_split"]), (waits, 0), "{name}");
        let all = PARTS * 512;
        match (row.arm.as_str(), row.case.starts_with("demote")) {
            ("in-block", _) => assert_eq!((flushes, entries, written), (0, 0, 0), "{name}"),
            ("full", _) => assert_eq!((flushes, entries, written), (0, 0, 2 * all), "{name}"),
            (arm, demotes) => {
                assert_eq!(flushes, if arm == "per-page" { 1 + PARTS } else { 2 }, "{name}");
                let (back, fresh, of_fresh) = if demotes { (4095, PARTS, 8) } else { (7 * PARTS, 1, 4096) };
                assert_eq!((freed, needed), (fresh * of_fresh, back + fresh), "{name}");
                assert_eq!(entries, back + fresh * of_fresh, "{name}");
                assert_eq!(written, back * 64 + all + fresh * 128, "{name}");
            }
        }
    }
}

/// Requests beside workers cost as much as alone, and none of ours comes out short.
fn check_churn(rows: &[Row]) {
    let mine = times(rows, "hugetlb-churn", &["churn/20", "alone/20", "quiet"]);
    for row in &mine {
        let name = format!("{} {}", row.case, row.arm);
        let count = |name: &str| row.counters[name];
        if row.case == "quiet" {
            assert_eq!((count("broadcasts"), count("pool_locks")), (0, 0), "{name}");
            continue;
        }
        let requests = count("requests");
        assert_eq!((requests, count("short")), (4, 0), "{name}");
        let (pages, leaves) = (20 * requests, count("leaves_split"));
        let expected = match row.arm.as_str() {
            "in-block" | "full" => 0,
            // Growing takes two for all pages, the first of which is for leaves that are split; shrinking one.
            "batched" | "mask-tail" => requests + leaves,
            _ => pages + leaves,
        };
        assert_eq!(count("broadcasts"), expected, "{name}");
    }
    let felt = |case: &str, metric: &str| {
        let of = |row: &&Row| row.experiment == "hugetlb-churn" && row.case == case && row.metric == metric;
        rows.iter().filter(of).count()
    };
    for (case, there) in [("churn/20", true), ("alone/20", false), ("quiet", true)] {
        assert_eq!((felt(case, "small") > 0, felt(case, "small-apart") > 0), (there, there), "{case}");
    }
}

fn check_resizes(rows: &[Row]) {
    let rows: Vec<&Row> =
        rows.iter().filter(|row| row.experiment == "hugetlb-pool" && row.metric == "time").collect();
    let arms: BTreeSet<&str> = rows.iter().map(|row| row.arm.as_str()).collect();
    assert_eq!(arms, OURS.into_iter().chain(["linux", "linux-saving"]).collect());
    let cases: BTreeSet<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases.len(), if allowed_cpus().len() > 1 { 10 } else { 8 }, "{cases:?}");
    for row in rows.iter().filter(|row| OURS.contains(&row.arm.as_str())) {
        let name = format!("{} {}", row.case, row.arm);
        assert!(row.skipped.is_none(), "{name}: {:?}", row.skipped);
        let (pages, grow) = (row.params["huge_pages"].as_u64().unwrap(), row.case.starts_with("grow"));
        let count = |name: &str| row.counters[name];
        let (leaves, flushes) = (count("leaves_split"), count("broadcasts"));
        // Each broadcast is waited for where it has a price.
        let price = row.params["broadcast_ns"].as_u64().unwrap();
        let wanted = match row.case.rsplit('/').next() {
            Some("2cpus") => 11_000,
            Some("252cpus") => 275_899,
            _ => 0,
        };
        assert_eq!(price, wanted, "{name}");
        assert!(row.median.unwrap() * pages as f64 >= (flushes * price) as f64, "{name}");
        let (written, freed, needed) =
            (count("descriptors_written"), count("frames_freed"), count("frames_needed"));
        let churned = row.params["churned"] == true;
        // Half of the pool's pages come from blocks whose pages in use move first.
        let alone = if churned && grow { count("pages_moved") / 8 } else { 0 };
        assert_eq!(alone > 0, churned && grow, "{name}");
        assert!(alone <= pages / 2, "{name}: {alone}");
        match (row.arm.as_str(), grow) {
            ("in-block", _) => assert_eq!((flushes, written, freed, needed), (0, 0, 0, 0), "{name}"),
            ("full", _) => assert_eq!((flushes, written, freed, needed), (0, 512 * pages, 0, 0), "{name}"),
            (arm, true) => {
                // Pages that were free and pages from moved blocks are a batch each.
                let batches = if churned { 2 } else { 1 };
                let expected = leaves + if arm == "per-page" { pages } else { batches };
                assert_eq!(flushes, expected, "{name}");
                // One frame of tails for each size of pages.
                let shared = if arm == "mask-tail" { 2 } else { 0 };
                let expected = (128 * pages + 64 * shared, 8 * pages, leaves + pages + shared);
                assert_eq!((written, freed, needed), expected, "{name}");
                assert_eq!(count("grace_periods") == 0, arm == "mask-tail", "{name}");
            }
            (arm, false) => {
                assert_eq!(flushes, if arm == "per-page" { pages } else { 1 }, "{name}");
                assert_eq!(count("grace_periods") == 0, arm == "mask-tail", "{name}");
                assert_eq!((written, freed, needed), (960 * pages, 0, 7 * pages), "{name}");
            }
        }
    }
}
