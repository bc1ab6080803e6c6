//! What the experiment on pools of huge pages must give in a small run: every case and arm, and the exact work of each policy.

use std::collections::BTreeSet;

use lab::bench::row::Row;
use lab::bench::threads::allowed_cpus;

const OURS: [&str; 4] = ["in-block", "full", "per-page", "batched"];

pub(crate) fn check(rows: &[Row]) {
    let rows: Vec<&Row> =
        rows.iter().filter(|row| row.experiment == "hugetlb-pool" && row.metric == "time").collect();
    let arms: BTreeSet<&str> = rows.iter().map(|row| row.arm.as_str()).collect();
    assert_eq!(arms, OURS.into_iter().chain(["linux", "linux-saving"]).collect());
    let cases: BTreeSet<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases.len(), if allowed_cpus().len() > 1 { 8 } else { 4 }, "{cases:?}");
    for row in rows.iter().filter(|row| OURS.contains(&row.arm.as_str())) {
        let name = format!("{} {}", row.case, row.arm);
        assert!(row.skipped.is_none(), "{name}: {:?}", row.skipped);
        let (pages, grow) = (row.params["huge_pages"].as_u64().unwrap(), row.case.starts_with("grow"));
        let count = |name: &str| row.counters[name];
        let (leaves, flushes) = (count("leaves_split"), count("broadcasts"));
        let (written, freed, needed) =
            (count("descriptors_written"), count("frames_freed"), count("frames_needed"));
        match (row.arm.as_str(), grow) {
            ("in-block", _) => assert_eq!((flushes, written, freed, needed), (0, 0, 0, 0), "{name}"),
            ("full", _) => assert_eq!((flushes, written, freed, needed), (0, 512 * pages, 0, 0), "{name}"),
            (arm, true) => {
                assert_eq!(flushes, if arm == "batched" { 2 } else { pages + leaves }, "{name}");
                assert_eq!((written, freed, needed), (128 * pages, 8 * pages, leaves + pages), "{name}");
            }
            (arm, false) => {
                assert_eq!(flushes, if arm == "batched" { 1 } else { pages }, "{name}");
                assert_eq!((written, freed, needed), (960 * pages, 0, 7 * pages), "{name}");
            }
        }
    }
}
