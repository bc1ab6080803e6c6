//! `quire advise` on a recording that has what DAMON saw, and `--accesses` where DAMON cannot be had.

use std::path::Path;

use lab::trace::{Accesses, EventKind, FileId, MapCause, PathId, Region};

use crate::advise::{line, page, quire, shown, text, touches, words};
use crate::recorder::{is_root, tiers};
use crate::small_trace::{SmallTrace, anonymous, program};

const MIB: u64 = 1 << 20;

/// 64 MiB of anonymous memory, and a file of 1 MiB behind a gap.
const AT: u64 = 0x10_0000_0000;
const FILE: u64 = AT + 96 * MIB;

/// What one interval saw that has passed: `[start, length, looks of 20]`.
fn saw(trace: &mut SmallTrace, pid: u32, regions: &[[u64; 3]]) {
    let region =
        |[start, len, accessed]: &[u64; 3]| Region { start: *start, len: *len, accessed: *accessed as u32 };
    let regions = regions.iter().map(region).collect();
    let (sample_ns, samples, cost_ns) = (5_000_000, 20, Some(1_000_000));
    trace.computes(100_000_000);
    trace.event(pid, EventKind::Accesses(Accesses { sample_ns, samples, cost_ns, regions }));
}

/// A program whose upper half is hot. In most intervals the first half of that has 20 looks, the other 18; the rest is a region
/// of which a part is mapped.
pub(crate) fn watched() -> SmallTrace {
    let mut trace = program();
    trace.event(10, anonymous(AT, 64 * MIB));
    let file = Some(FileId { device: 1, inode: 5, path: PathId(1) });
    let (cause, start, len, prot, flags) = (MapCause::Other, FILE, MIB, 5, 2);
    trace.event(10, EventKind::Map { cause, start, len, prot, flags, file, file_offset: 0 });
    touches(&mut trace, AT, 64, 1);
    let cold = [AT, 32 * MIB, 0];
    let (first, second) = ([AT + 32 * MIB, 16 * MIB, 20], [AT + 48 * MIB, 16 * MIB, 18]);
    let rest = [FILE - 32 * MIB, 33 * MIB, 1];
    // The first interval has one region for all of it, as DAMON begins.
    saw(&mut trace, 10, &[[AT, 129 * MIB, 9]]);
    for _ in 0..5 {
        saw(&mut trace, 10, &[cold, first, second, rest]);
    }
    saw(&mut trace, 10, &[cold, [AT + 32 * MIB, 32 * MIB, 2]]);
    trace.exit(10);
    trace
}

#[test]
fn a_recording_with_accesses_shows_the_hot_half() {
    let trace = watched().write();
    let line = line(&trace, &["--khugepaged", "off"]);
    let reach = &line["reach"];
    let process = &reach["process"];
    assert_eq!((&reach["source"], &process["program"]), (&"damon".into(), &"small".into()), "{reach}");
    assert_eq!(reach["damon"], serde_json::json!({ "regions": 4, "sample_ns": 5_000_000, "samples": 20 }));
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{reach}"));
    // All of 16 MiB, nine tenths of 16, and of the file as much as a twentieth of its region: all of it.
    assert_eq!(process["intervals"], 7);
    let expected = [AT + 32 * MIB, 32 * MIB, 16 * MIB + 16 * MIB / 10 * 9];
    let parts = process["mappings"].as_array().expect("parts");
    assert_eq!(parts.len(), 2, "the cold half is none: {reach}");
    for (field, value) in ["address", "bytes", "referenced_bytes"].into_iter().zip(expected) {
        assert!((number(&parts[0][field]) - value as f64).abs() < 16.0, "{field}: {reach}");
    }
    assert_eq!((&parts[1]["address"], &parts[1]["referenced_bytes"]), (&FILE.into(), &MIB.into()), "{reach}");
    assert_eq!(parts[1]["name"], "/dev/zero (deleted)");
    // The most is in an interval with one large region, which is 9 of 20 of what is mapped and what is not: all.
    assert!((number(&process["most_bytes"]) - 58.05 * MIB as f64).abs() < 1e5, "{reach}");
    // 30.4 MiB side by side, or in each of 16 large pages; the file takes small ones.
    let with = &process["with_2m"];
    let entries = ["least_2m", "most_2m", "least_4k", "most_4k"].map(|field| with[field].clone());
    assert_eq!(entries, [16, 16, 256, 256].map(serde_json::Value::from), "{reach}");
    // Seven milliseconds in seven intervals, of which six are between the first and the last.
    let cost = number(&reach["overhead_percent"]);
    assert!((cost - 1.0).abs() < 0.05 && reach["longest_ns"].is_null(), "{reach}");
    assert!(page(&line).contains("A model from DAMON, 4 regions, each looked at every 5.00 ms, 20 looks"));
    let shown = words(&shown(&trace, &["--khugepaged", "off"]));
    for part in [
        "reach: reach model from DAMON, 4 regions, each looked at every 5.00 ms: small (10) accesses 31.4 MiB from one look",
        "in the median of 7 intervals of 20 looks",
        "most in anonymous memory at 0x1002000000, 30.4 MiB of 32.0 MiB; 'zero (deleted)'",
        "unknown is which pages of a region they are: DAMON looks at one page of each; its thread took 1.0 % of one CPU",
        "TLB misses (DAMON tells no single accesses)",
    ] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
}

/// The map of the report has what was accessed, not what was touched first: one page of each block.
#[test]
fn the_map_over_time_shows_accesses_where_the_recording_has_them() {
    let line = line(&watched().write(), &["--khugepaged", "off"]);
    let heat = &line["heat"];
    assert_eq!((&heat["source"], &heat["pid"]), (&"damon".into(), &10.into()), "{heat}");
    let rows = heat["rows"].as_array().expect("rows");
    let pages = |at: u64| -> Vec<u64> {
        let row = rows.iter().find(|row| row["start"] == at).unwrap_or_else(|| panic!("no {at:#x}: {heat}"));
        row["pages"].as_array().expect("steps").iter().filter_map(serde_json::Value::as_u64).collect()
    };
    // In the first interval all is alike, then the first half is cold, and at last all is cold.
    let (cold, first, second, file) = (pages(AT), pages(AT + 32 * MIB), pages(AT + 48 * MIB), pages(FILE));
    assert_eq!((cold[20], first[20], second[20], file[20]), (0, 512, 461, 256), "{heat}");
    assert!(cold[0] > 400 && first[0] == cold[0] && second[0] == cold[0], "{heat}");
    assert_eq!((cold[47], first[47], second[47], file[47]), (0, 52, 52, 0), "{heat}");
    let shown = page(&line);
    for part in [
        "Accesses by address and time",
        "pages accessed from one look to the next, by DAMON",
        "small (10) accesses 58.1 MiB at the most, from 0x1000000000 to 0x1006200000.",
    ] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    assert!(!shown.contains("First touches"), "{shown}");
}

#[test]
fn accesses_are_no_work_of_the_program() {
    let trace = watched().write();
    let path: &Path = trace.as_ref();
    let checked = quire(&["replay", "--check", path.to_str().expect("a name")]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let folder = tempfile::tempdir().expect("a directory");
    let table = folder.path().join("table.csv");
    let names = [path, &table].map(|path| path.to_str().expect("a name"));
    let exported = quire(&["export", "--format", "csv", "-o", names[1], names[0]]);
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let table = std::fs::read_to_string(table).expect("a table");
    let of_half = format!("{:#x}+{:#x}:18", AT + 48 * MIB, 16 * MIB);
    assert_eq!(table.lines().filter(|line| line.contains("accesses") && line.contains(&of_half)).count(), 5);
}

/// On a kernel that has DAMON this is a recording by it; the reach is known either way.
#[test]
fn where_damon_cannot_be_had_the_next_source_is_named() {
    if !is_root() || !tiers().contains(&"privileged") {
        return println!("skipped: referenced bits of a moment need root here");
    }
    let command = ["advise", "--accesses", "--baseline", "4K", "--khugepaged", "off", "--", "sleep", "1.5"];
    let advised = quire(&command);
    let (said, shown) = (text(&advised.stderr), words(&text(&advised.stdout)));
    assert!(advised.status.success(), "{said}");
    let falls_back = said.contains(": referenced bits are sampled instead");
    let source = if falls_back { "reach model from referenced bits" } else { "reach model from DAMON" };
    assert!(shown.contains(source), "{said}\n{shown}");
    let folder = tempfile::tempdir().expect("a directory");
    let trace = folder.path().join("a.qtrace");
    let trace = trace.to_str().expect("a name");
    let recorded = quire(&["record", "--accesses", "-o", trace, "sleep", "1"]);
    let told = text(&recorded.stderr);
    assert!(recorded.status.success(), "{told}");
    assert_eq!(told.contains(": the recording has no accesses"), falls_back, "{told}");
    assert_eq!(told.contains("intervals of DAMON"), !falls_back, "{told}");
    for wrong in [&["--accesses", trace][..], &["--accesses", "--referenced", "--", "true"]] {
        assert_eq!(quire(&[&["advise"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}
