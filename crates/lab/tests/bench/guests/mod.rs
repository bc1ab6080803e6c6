//! What the experiments with a guest must say of themselves.

use lab::bench::row::Row;

/// Looks at the rows of `brackets` and `postcopy`.
pub(crate) fn check(rows: &[Row]) {
    let of = |experiment: &str, metric: &str| -> Vec<&Row> {
        rows.iter().filter(|row| row.experiment == experiment && row.metric == metric).collect()
    };
    let times = of("brackets", "time");
    assert_eq!(times.len(), 11, "a row for each verb");
    for row in times {
        assert_eq!(row.skipped, None, "{}", row.case);
        let (brackets, calls) = (row.counters["brackets"], row.counters["calls"]);
        assert!(
            row.counters["accesses"] > 0 && calls == row.params["calls"].as_u64().unwrap(),
            "{}",
            row.case
        );
        if row.case == "collapse-parts" {
            assert_eq!((brackets, row.counters["copies_dropped"]), (0, 0), "same frames, same rights");
            assert_eq!(row.counters["larger_copies"], calls, "each was told of");
        } else {
            assert!(brackets >= calls, "{}: {brackets} brackets of {calls} calls", row.case);
            assert!(row.counters["copies_dropped"] >= calls, "{}", row.case);
        }
    }
    for row in of("brackets", "held") {
        assert!(
            row.samples.iter().all(|share| (0.0..=100.0).contains(share)),
            "{}: {:?}",
            row.case,
            row.samples
        );
    }
    for row in of("brackets", "longest") {
        let median = rows.iter().find(|other| other.case == row.case && other.metric == "bracket").unwrap();
        assert!(median.median <= row.median, "{}", row.case);
        assert_eq!(median.median == Some(0.0), row.case == "collapse-parts", "{}: each was timed", row.case);
    }
    let fetches = of("postcopy", "time");
    let arms: Vec<&str> = fetches.iter().map(|row| row.arm.as_str()).collect();
    assert_eq!(arms, ["4KiB", "2MiB", "1GiB", "4KiB-sleeping", "linux", "linux-polling"]);
    let linux = fetches.iter().find(|row| row.arm == "linux").unwrap();
    if linux.skipped.is_none() {
        let of = |name: &str| linux.counters[name];
        assert_eq!(of("pieces") * 4096, linux.params["bytes"].as_u64().unwrap());
        assert!(of("events") > 0 && of("fetches") <= of("events"));
        assert_eq!(of("large_bytes"), linux.params["bytes"].as_u64().unwrap(), "all of it is large again");
    }
}
