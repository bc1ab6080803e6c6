//! Policies of memory beyond folio sizes, as `quire advise` shows them.

use std::path::Path;
use std::process::Command;

use crate::advise::{grow_heap, line, number, quire, sets, shown, text, touches, words};
use crate::small_trace::{HEAP, SmallTrace, call, program};
use lab::trace::Call;
use serde_json::Value;

/// Nanoseconds pass: two microseconds for each of these queries.
fn waits(trace: &mut SmallTrace, queries: u64) {
    (0..queries).for_each(|_| trace.event(10, call(Call::Brk, [0; 6], HEAP as i64)));
}

/// Every other page of a heap of 4 MiB is touched within 1 ms, and then 4 ms pass.
fn half_used() -> tempfile::TempPath {
    let mut small = program();
    grow_heap(&mut small, 4 << 20);
    touches(&mut small, HEAP, 1024, 2);
    waits(&mut small, 2000);
    small.exit(10);
    small.write()
}

/// The first set of khugepaged, under these settings.
fn beside(trace: &Path, baseline: &str, settings: &str) -> Value {
    let line = line(trace, &["--baseline", baseline, "--khugepaged", settings]);
    line.pointer("/khugepaged/sets/0").unwrap_or_else(|| panic!("{line}")).clone()
}

/// Private memory at the last sample before the end.
fn last<'a>(set: &'a Value, which: &str) -> &'a Value {
    set[which].as_array().and_then(|samples| samples.last()).unwrap_or_else(|| panic!("{set}"))
}

#[test]
fn khugepaged_collapses_at_its_pace_and_within_its_limits() {
    let trace = half_used();
    let set = beside(&trace, "4K", "scan_sleep_millisecs=1,max_ptes_none=511");
    // At 0.5 ms and then each ms of 5.
    assert_eq!(
        (number(&set, "/scans"), number(&set, "/collapsed"), number(&set, "/split")),
        (5, 2, 0),
        "{set}"
    );
    assert_eq!(number(&set, "/first_ns"), 500_000, "{set}");
    assert_eq!(
        (number(last(&set, "without"), "/large"), number(last(&set, "without"), "/untouched")),
        (0, 0)
    );
    // The half that was never touched is resident now.
    let with = last(&set, "with");
    assert_eq!((number(with, "/large"), number(with, "/untouched")), (2 << 20, 2 << 20), "{set}");
    let strict = beside(&trace, "4K", "scan_sleep_millisecs=1,max_ptes_none=64");
    assert_eq!((number(&strict, "/collapsed"), &strict["first_ns"]), (0, &Value::Null), "{strict}");
    let slow = beside(&trace, "4K", "scan_sleep_millisecs=4,max_ptes_none=511,pages_to_scan=512");
    assert_eq!(number(&slow, "/scans"), 1, "at 2 ms and no more: {slow}");
    assert!(number(&slow, "/collapsed") <= 1, "one table holds all pages of a scan: {slow}");
}

#[test]
fn the_splitter_frees_what_was_never_touched() {
    let trace = half_used();
    let set = beside(&trace, "2M", "scan_sleep_millisecs=1,max_ptes_none=64");
    assert_eq!(number(&set, "/split"), 2, "{set}");
    assert!(number(&set, "/freed_bytes") >= 2 << 20, "{set}");
    assert_eq!(number(last(&set, "without"), "/untouched"), 2 << 20, "{set}");
    assert_eq!(number(last(&set, "with"), "/untouched"), 0, "{set}");
    for unsplit in ["max_ptes_none=511", "max_ptes_none=64,shrink_underused=0"] {
        let set = beside(&trace, "2M", &format!("scan_sleep_millisecs=1,{unsplit}"));
        assert_eq!((number(&set, "/split"), number(&set, "/freed_bytes")), (0, 0), "{unsplit}: {set}");
    }
}

#[test]
fn khugepaged_is_shown_with_what_is_assumed() {
    let trace = half_used();
    let short = words(&shown(&trace, &["--khugepaged", "scan_sleep_millisecs=10000"]));
    assert!(short.contains("khugepaged: scans once in 10.0 s, and the program ran"), "{short}");
    let said = words(&shown(&trace, &["--khugepaged", "scan_sleep_millisecs=1,max_ptes_none=511"]));
    for part in [
        "khugepaged: 4,096 pages in 1.00 ms, max_ptes_none 511; no folio is split again",
        "under 4K: 2 ranges collapsed, the first after 500 us; 2M leaves map 0.0 % →",
        "untouched 0 KiB → 2.0 MiB",
        "assumed: khugepaged scans this program alone",
    ] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    assert!(!said.contains("unknown: TLB (no samples), khugepaged"), "{said}");
    let off = words(&shown(&trace, &["--khugepaged", "off"]));
    assert!(!off.contains("khugepaged:") && !off.contains("assumed: khugepaged"), "{off}");
    let refused = quire(&["advise", "--khugepaged", "max_ptes_none=512", "x.qtrace"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("max_ptes_none is 0 to 511"), "{}", text(&refused.stderr));
}

/// All pages of a heap of 8 MiB are touched.
fn full() -> tempfile::TempPath {
    let mut small = program();
    grow_heap(&mut small, 8 << 20);
    touches(&mut small, HEAP, 2048, 1);
    small.exit(10);
    small.write()
}

/// Faults and failed requests under a set.
fn faults(line: &Value, folio: &str) -> (u64, u64) {
    let set = sets(line).iter().find(|set| set["folio"] == folio).unwrap_or_else(|| panic!("{line}"));
    (number(set, "/faults"), number(set, "/fell_back"))
}

#[test]
fn where_free_memory_is_in_pieces_large_folios_fail_and_smaller_ones_do_not() {
    let trace = full();
    let (whole, pieces) = (line(&trace, &[]), line(&trace, &["--fragmentation", "100"]));
    assert_eq!((faults(&whole, "2M"), &whole["fragmentation"]), ((4, 0), &Value::Null), "{whole}");
    // A fault that gets one page leaves no room for a larger folio beside it.
    assert_eq!((faults(&pieces, "2M"), faults(&pieces, "64K")), ((2048, 4), (128, 0)), "{pieces}");
    assert_eq!((&whole["chosen"], &pieces["chosen"]), (&Value::from("2M"), &Value::from("64K")), "{pieces}");
    assert!((pieces["fragmentation"]["percent"].as_f64().expect("a share") - 100.0).abs() < 1e-6);
    for field in ["/memory_bytes", "/timeline/47/resident", "/peak_rss_bytes"] {
        assert_eq!(
            number(&sets(&whole)[0], field),
            number(&sets(&pieces)[0], field),
            "what others hold counts"
        );
    }
    let said = words(&shown(&trace, &["--fragmentation", "100%"]));
    for part in [
        "pieces: 100 % of free memory is in pieces below 2 MiB at the start",
        "under 64K every request for a larger folio finds one",
        "under 2M 4 requests for larger folios find none, 0 find one",
        "no compaction joins pieces",
    ] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
}

#[test]
fn pieces_are_those_of_the_machine_if_asked() {
    let (trace, root) = (full(), tempfile::tempdir().expect("a directory"));
    let advise = |buddyinfo: &str| {
        std::fs::create_dir_all(root.path().join("proc")).expect("it is made");
        std::fs::write(root.path().join("proc/buddyinfo"), buddyinfo).expect("it is written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command
            .args(["advise", "--format", "json", "--baseline", "4K", "--fragmentation", "machine"])
            .arg(&trace);
        command.env("QUIRE_SETTINGS", root.path()).output().expect("the command runs")
    };
    let output = advise(
        "Node 0, zone   Normal   9000      0      0      0      0      0      0      0      0      0      0\n",
    );
    let line: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    assert_eq!((faults(&line, "64K"), faults(&line, "4K")), ((2048, 128), (2048, 0)), "{line}");
    let output = advise(
        "Node 0, zone   Normal      0      0      0      0      0      0      0      0      0      0      9\n",
    );
    let line: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    assert_eq!(faults(&line, "2M"), (4, 0), "{line}");
    let output = advise("nothing\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("names no free memory"), "{}", text(&output.stderr));
    let refused = quire(&["advise", "--fragmentation", "all", "x.qtrace"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}
