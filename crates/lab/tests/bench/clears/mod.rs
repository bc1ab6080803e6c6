//! What the experiments on clearing must give in a small run: every case and arm, and the exact work.

use std::collections::BTreeSet;

use lab::bench::row::Row;
use quire::arch::{ClearKernel, CpuFeatures};

/// The arms of the kernels that this processor has.
fn kernels() -> BTreeSet<&'static str> {
    let features = CpuFeatures::detect();
    ClearKernel::ALL.into_iter().filter(|kernel| kernel.on(features).is_ok()).map(ClearKernel::name).collect()
}

/// No byte is cleared twice: what was cleared is what the program got.
pub(crate) fn cleared_once(row: &Row) {
    if row.skipped.is_some() || !row.arm.starts_with("quire") {
        return;
    }
    let count = |name: &str| row.counters[name];
    let (out, cleared, ahead) =
        (count("bytes_handed_out"), count("bytes_cleared"), count("bytes_cleared_ahead"));
    let name = format!(
        "{} {} {}: {out} handed out, {cleared} and {ahead} cleared",
        row.experiment, row.case, row.arm
    );
    match row.arm.as_str() {
        // All free memory was cleared ahead.
        "quire-ahead" => assert!(ahead >= out && cleared == 0, "{name}"),
        _ => assert_eq!(ahead + cleared, out, "{name}"),
    }
    assert!(out > 0, "{name}");
}

pub(crate) fn check(rows: &[Row]) {
    let of = |experiment: &str| -> Vec<&Row> {
        rows.iter().filter(|row| row.experiment == experiment && row.metric == "time").collect()
    };
    let (clear, cache, used) = (of("clear"), of("clear-cache"), of("clear-then-use"));
    let arms = |rows: &[&Row]| -> BTreeSet<String> { rows.iter().map(|row| row.arm.clone()).collect() };
    let with = |more: &[&str]| -> BTreeSet<String> {
        kernels().iter().chain(more).map(|arm| (*arm).to_owned()).collect()
    };
    assert_eq!(arms(&clear), with(&["quire", "quire-pool", "contiguous", "memset", "linux", "linux-thp"]));
    assert_eq!(arms(&cache), with(&["none", "wait", "translate", "quire", "quire-soon", "quire-later"]));
    assert_eq!(arms(&used), with(&["quire", "quire-soon", "quire-later", "contiguous"]));
    let populated: Vec<_> = clear.iter().filter(|row| row.case.starts_with("populate/")).copied().collect();
    assert_eq!(arms(&populated), with(&["quire", "quire-pool", "contiguous", "linux", "linux-thp"]));
    populated.iter().for_each(|row| cleared_once(row));
    let cases = |rows: &[&Row]| -> BTreeSet<String> { rows.iter().map(|row| row.case.clone()).collect() };
    for case in ["4KiB", "2MiB", "populate/2MiB"] {
        assert!(cases(&clear).contains(case), "{case}");
    }
    assert_eq!(cases(&cache), ["2MiB", "2MiB/chase"].map(str::to_owned).into());
    assert_eq!(cases(&used).len(), 9);
    for row in clear.iter().chain(&cache).chain(&used) {
        let name = format!("{} {} {}", row.experiment, row.case, row.arm);
        assert!(row.skipped.is_none() || row.arm.starts_with("linux"), "{name}: {:?}", row.skipped);
    }
    for row in clear.iter().filter(|row| !row.case.starts_with("populate/")) {
        let threads = row.params["threads"].as_u64().unwrap();
        assert_eq!(row.counters["bytes"], threads * row.params["bytes"].as_u64().unwrap());
    }
    for row in &cache {
        assert_eq!(row.counters["lines"] * 64, row.params["working_set_bytes"].as_u64().unwrap());
    }
    for row in &used {
        let (extent, bytes) = (row.params["extent_bytes"].as_u64(), row.params["bytes"].as_u64());
        let lines = match row.case.rsplit_once('/').unwrap().1 {
            "none" => 0,
            "near" => bytes.unwrap() / extent.unwrap() * (64 << 10) / 64,
            _ => bytes.unwrap() / 64,
        };
        assert_eq!(row.counters["lines_used"], lines, "{}: every line that is used reads as zero", row.case);
    }
}
