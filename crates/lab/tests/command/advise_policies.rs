//! Policies of memory beyond folio sizes, as `quire advise` shows them.

use std::path::Path;
use std::process::Command;

use crate::advise::{grow_heap, line, number, quire, sets, shown, text, touches, words};
use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, FileId, ForkKind, MapCause, PathId};
use serde_json::Value;

/// Nanoseconds pass: two microseconds for each of these queries.
fn waits(trace: &mut SmallTrace, queries: u64) {
    (0..queries).for_each(|_| trace.event(10, call(Call::Brk, [0; 6], HEAP as i64)));
}

/// `MADV_HUGEPAGE` and `MADV_NOHUGEPAGE`.
const HUGE: u64 = 14;
const SMALL: u64 = 15;

fn advises(trace: &mut SmallTrace, at: u64, bytes: u64, advice: u64) {
    trace.event(10, call(Call::Madvise, [at, bytes, advice, 0, 0, 0], 0));
}

/// Every other page of a heap of 4 MiB is touched within 1 ms, and then 4 ms pass.
fn half_used() -> tempfile::TempPath {
    half_used_by(true)
}

/// Faults may bring large folios, or single pages alone, of which the program thinks better when it has them.
fn half_used_by(large: bool) -> tempfile::TempPath {
    let mut small = program();
    grow_heap(&mut small, 4 << 20);
    if !large {
        advises(&mut small, HEAP, 4 << 20, SMALL);
    }
    touches(&mut small, HEAP, 1024, 2);
    if !large {
        advises(&mut small, HEAP, 4 << 20, HUGE);
    }
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
    let trace = half_used_by(false);
    let set = beside(&trace, "2M", "scan_sleep_millisecs=1,pages_to_scan=4096,max_ptes_none=511");
    // At 0.5 ms and then each ms of 5, too early the first time.
    assert_eq!(
        (number(&set, "/scans"), number(&set, "/collapsed"), number(&set, "/split")),
        (5, 2, 0),
        "{set}"
    );
    assert_eq!(number(&set, "/first_ns"), 1_500_000, "it asks after 1 ms: {set}");
    assert_eq!(
        (number(last(&set, "without"), "/large"), number(last(&set, "without"), "/untouched")),
        (0, 0)
    );
    // The half that was never touched is resident now.
    let with = last(&set, "with");
    assert_eq!((number(with, "/large"), number(with, "/untouched")), (2 << 20, 2 << 20), "{set}");
    let strict = beside(&trace, "2M", "scan_sleep_millisecs=1,pages_to_scan=4096,max_ptes_none=64");
    assert_eq!((number(&strict, "/collapsed"), &strict["first_ns"]), (0, &Value::Null), "{strict}");
    let slow = beside(&trace, "2M", "scan_sleep_millisecs=4,max_ptes_none=511,pages_to_scan=512");
    assert_eq!(number(&slow, "/scans"), 1, "at 2 ms and no more: {slow}");
    assert!(number(&slow, "/collapsed") <= 1, "one table holds all pages of a scan: {slow}");
}

#[test]
fn the_splitter_frees_what_was_never_touched() {
    let trace = half_used();
    let set = beside(&trace, "2M", "scan_sleep_millisecs=1,pages_to_scan=4096,max_ptes_none=64");
    assert_eq!(number(&set, "/split"), 2, "{set}");
    assert!(number(&set, "/freed_bytes") >= 2 << 20, "{set}");
    assert_eq!(number(last(&set, "without"), "/untouched"), 2 << 20, "{set}");
    assert_eq!(number(last(&set, "with"), "/untouched"), 0, "{set}");
    for unsplit in ["max_ptes_none=511", "max_ptes_none=64,shrink_underused=0"] {
        let set = beside(&trace, "2M", &format!("scan_sleep_millisecs=1,pages_to_scan=4096,{unsplit}"));
        assert_eq!((number(&set, "/split"), number(&set, "/freed_bytes")), (0, 0), "{unsplit}: {set}");
    }
}

#[test]
fn khugepaged_collapses_memory_that_asks_where_that_alone_may_have_2m() {
    let (mut small, root) = (program(), tempfile::tempdir().expect("a directory"));
    for at in [LARGE, HALF] {
        small.event(10, anonymous(at, 4 << 20));
        touches(&mut small, at, 1024, 1);
    }
    advises(&mut small, LARGE, 4 << 20, HUGE);
    waits(&mut small, 2000);
    small.exit(10);
    let trace = small.write();
    let settings = root.path().join("sys/kernel/mm/transparent_hugepage/hugepages-2048kB");
    std::fs::create_dir_all(&settings).expect("it is made");
    std::fs::write(settings.join("enabled"), "always inherit [madvise] never\n").expect("it is written");
    let (mut command, prices) = (Command::new(env!("CARGO_BIN_EXE_quire")), crate::advise::prices());
    command.args(["advise", "--format", "json", "--khugepaged", "scan_sleep_millisecs=1,pages_to_scan=4096"]);
    let output = command
        .arg("--prices")
        .arg(&*prices)
        .arg(&trace)
        .env("QUIRE_SETTINGS", root.path())
        .output()
        .expect("the command runs");
    let line: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    let set = line.pointer("/khugepaged/sets/0").unwrap_or_else(|| panic!("{line}"));
    assert_eq!((&set["folio"], number(set, "/collapsed")), (&"4K, 2M by madvise".into(), 2), "{set}");
    assert_eq!(number(last(set, "with"), "/large"), 4 << 20, "{set}");
}

#[test]
fn khugepaged_is_shown_with_what_is_assumed() {
    let trace = half_used_by(false);
    let under = |baseline: &str, settings: &str| {
        words(&shown(&trace, &["--baseline", baseline, "--max-waste", "0", "--khugepaged", settings]))
    };
    let short = under("2M", "scan_sleep_millisecs=10000");
    assert!(short.contains("khugepaged: scans once in 10.0 s, and the program ran"), "{short}");
    let pace = "scan_sleep_millisecs=1,pages_to_scan=4096,max_ptes_none=511";
    let not_started = under("4K", pace);
    let why = "khugepaged: not under 4K: Linux starts it only where some memory may have folios of 2M";
    assert!(not_started.contains(why) && !not_started.contains("ranges collapsed"), "{not_started}");
    let said = under("2M", pace);
    for part in [
        "khugepaged: 4,096 pages in 1.00 ms, max_ptes_none 511; no folio is split again",
        "under 2M: 2 ranges collapsed, the first after 1.50 ms; 2M leaves map 0.0 % →",
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
    small.computes(10_000_000);
    small.exit(10);
    small.write()
}

/// Memory is looked at before an unmap, and again after an eighth more is touched.
fn grows() -> tempfile::TempPath {
    let mut small = program();
    grow_heap(&mut small, 8 << 20);
    touches(&mut small, HEAP, 1792, 1);
    small.event(10, anonymous(LARGE, 4096));
    small.event(10, call(Call::Munmap, [LARGE, 4096, 0, 0, 0, 0], 0));
    touches(&mut small, HEAP + (7 << 20), 256, 1);
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
fn faults_that_find_no_folio_fall_back_or_wait() {
    let (trace, root) = (full(), tempfile::tempdir().expect("a directory"));
    let settings = root.path().join("sys/kernel/mm/transparent_hugepage");
    std::fs::create_dir_all(&settings).expect("it is made");
    let advise = |mode: &str, more: &[&str]| {
        std::fs::write(settings.join("defrag"), format!("{mode}\n")).expect("it is written");
        let prices = crate::advise::prices();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["advise", "--baseline", "4K", "--fragmentation", "100", "--prices"]).arg(&*prices);
        command.args(more).arg(&trace).env("QUIRE_SETTINGS", root.path()).env_remove("COLUMNS");
        text(&command.output().expect("the command runs").stdout)
    };
    let line =
        |mode| -> Value { serde_json::from_str(&advise(mode, &["--format", "json"])).expect("an object") };
    let always = line("always never [madvise]");
    let (defrag, copy) = (&always["defrag"], always["prices"]["ns"]["cow-copy"].as_f64().expect("a price"));
    let set = &defrag["sets"][0];
    // 64K is chosen and finds all its folios.
    assert_eq!((&set["folio"], defrag["sets"].as_array().map(Vec::len)), (&"2M".into(), Some(1)), "{defrag}");
    assert_eq!((number(set, "/falls_back/faults"), number(set, "/waits/faults")), (2048, 4), "{defrag}");
    assert_eq!((number(set, "/waiting_faults"), number(set, "/moved_pages")), (4, 4 * 256), "{defrag}");
    let ns = |field: &str| set.pointer(field).and_then(Value::as_f64).expect("a time");
    let folio = 400.0 + 512.0 * 100.0;
    assert!((ns("/waits/longest_ns") - folio - 256.0 * copy).abs() < 1.0, "{defrag}");
    assert!((ns("/waits/time_ns") - 4.0 * (folio + 256.0 * copy)).abs() < 1.0, "{defrag}");
    assert_eq!(ns("/falls_back/time_ns"), 2048.0 * 500.0, "{defrag}");
    for (mode, waits) in [("[always] never", true), ("always [madvise]", false), ("[never]", false)] {
        assert_eq!(line(mode)["defrag"]["waits_now"], waits, "{mode}");
    }
    let told = words(&advise("always [defer+madvise]", &[]));
    for part in [
        "defrag: 2M: a fault that finds no folio takes pages under `never`, `defer`, `madvise`: 2,048 faults",
        "under `always` 4 of 4 faults wait until 1,024 pages have moved",
        "this machine has `defer+madvise`: faults of this program do not wait",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    assert_eq!(self::line(&trace, &[])["defrag"], Value::Null, "memory is in one piece");
}

#[test]
fn what_others_hold_counts_for_no_program() {
    let trace = grows();
    let (whole, pieces) = (line(&trace, &[]), line(&trace, &["--fragmentation", "100"]));
    for field in ["/memory_bytes", "/timeline/47/resident", "/peak_rss_bytes"] {
        assert_eq!(number(&sets(&whole)[0], field), number(&sets(&pieces)[0], field), "{field}: {pieces}");
    }
}

#[test]
fn pieces_are_those_of_the_machine_if_asked() {
    let (trace, root) = (full(), tempfile::tempdir().expect("a directory"));
    let advise = |buddyinfo: &str| {
        std::fs::create_dir_all(root.path().join("proc")).expect("it is made");
        std::fs::write(root.path().join("proc/buddyinfo"), buddyinfo).expect("it is written");
        let (mut command, prices) = (Command::new(env!("CARGO_BIN_EXE_quire")), crate::advise::prices());
        command.args(["advise", "--format", "json", "--baseline", "4K", "--fragmentation", "machine"]);
        command.arg("--prices").arg(&*prices).arg(&trace);
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

#[test]
fn sets_that_exceed_a_limit_are_not_chosen() {
    let trace = half_used();
    let free = line(&trace, &["--baseline", "2M", "--max-waste", "100"]);
    assert_eq!((&free["chosen"], &free["memory_high_bytes"]), (&Value::Null, &Value::Null), "{free}");
    assert_eq!(sets(&free)[0]["above_high_bytes"], Value::Null, "{free}");
    let options = ["--baseline", "2M", "--max-waste", "100", "--memory-high", "3M"];
    let held = line(&trace, &options);
    assert_eq!(
        (&held["chosen"], number(&held, "/memory_high_bytes")),
        (&Value::from("4K"), 3 << 20),
        "{held}"
    );
    let of = |folio: &str| sets(&held).iter().find(|set| set["folio"] == folio).expect("a set");
    for set in sets(&held) {
        let over = number(set, "/memory_bytes").saturating_sub(3 << 20);
        assert_eq!(number(set, "/above_high_bytes"), over, "{set}");
    }
    let share = |folio: &str| of(folio)["above_high_percent"].as_f64().expect("a share");
    // The second folio of 2 MiB comes at the end of the fifth step, after half of the first of five
    // milliseconds.
    assert!((share("2M") - 4400.0 / 48.0).abs() < 0.1 && share("4K") == 0.0, "{held}");
    assert!((1 << 20..(1 << 20) + (64 << 10)).contains(&number(of("2M"), "/above_high_bytes")), "{held}");
    let told = words(&shown(&trace, &["--max-waste", "100", "--memory-high", "3M"]));
    for part in [
        "limit: memory.high of 3.0 MiB: 4K stay below it",
        "2M exceeds it by 1.0 MiB, in 92 % of the time; 1.0 MiB of it are no file pages, and need a swap",
        "others exceed it, by 1.0 MiB to 1.0 MiB",
        "assumed: nothing is reclaimed",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    let all = words(&shown(&trace, &["--memory-high", "1M"]));
    assert!(all.contains("limit: memory.high of 1.0 MiB: every set exceeds it"), "{all}");
    let none = words(&shown(&trace, &["--memory-high", "1G"]));
    assert!(none.contains("every set stays below it") && !none.contains("exceeds"), "{none}");
}

/// Memory was looked at in full only where it had grown by a sixty-fourth, and the peak was what it was then.
#[test]
fn what_exceeds_a_limit_at_the_peak_exceeds_it_for_some_time() {
    let mut small = program();
    grow_heap(&mut small, 32 << 20);
    touches(&mut small, HEAP, 6400, 1);
    small.event(10, anonymous(LARGE, 4096));
    small.event(10, call(Call::Munmap, [LARGE, 4096, 0, 0, 0, 0], 0));
    touches(&mut small, HEAP + (6400 << 12), 64, 1);
    small.exit(10);
    let trace = small.write();
    let highest = |line: &Value| -> u64 {
        let steps = sets(line)[0]["timeline"].as_array().expect("steps").iter();
        steps.map(|step| number(step, "/resident")).max().expect("a step")
    };
    let free = line(&trace, &[]);
    assert_eq!(number(&sets(&free)[0], "/memory_bytes"), highest(&free), "{free}");
    // One page less than the program needs.
    let high = (highest(&free) - 4096).to_string();
    let held = line(&trace, &["--memory-high", &high]);
    let set = &sets(&held)[0];
    assert!(set["above_high_percent"].as_f64().expect("a share") > 0.0, "{held}");
    assert_eq!(number(set, "/above_high_bytes"), 4096, "{held}");
}

const TEXT: u64 = 0x40_1000;

/// A program whose text of 6 MiB and 65 pages starts at no multiple of 2 MiB uses the first `pages` of it.
fn runs_code(pages: u64) -> SmallTrace {
    let mut small = program();
    let file = Some(FileId { device: 1, inode: 7, path: PathId(0) });
    let text = |len: u64, prot: u32, start: u64| {
        let cause = MapCause::ExecImage;
        EventKind::Map { cause, start, len, prot, flags: 2, file, file_offset: 0 }
    };
    small.event(10, text((6 << 20) + (65 << 12), 5, TEXT));
    // What is read and not executed is no code.
    small.event(10, text(1 << 20, 1, LARGE));
    small.event(10, fault(LARGE, Access::Read, false));
    (0..pages).for_each(|page| small.event(10, fault(TEXT + page * 4096, Access::Execute, false)));
    small
}

#[test]
fn code_counts_against_the_instruction_tlb() {
    let mut small = runs_code(1000);
    // Behind the last whole 2 MiB, with what Linux maps around it.
    small.event(10, fault(TEXT + (1600 << 12), Access::Execute, false));
    small.event(10, EventKind::FaultAround { start: TEXT + (1592 << 12), len: 8 << 12 });
    small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0, kind: ForkKind::Copy });
    small.event(11, fault(TEXT, Access::Execute, false));
    small.exit(11);
    small.exit(10);
    let trace = small.write();
    let code = line(&trace, &[])["code"].clone();
    assert_eq!((number(&code, "/pid"), number(&code, "/pages")), (10, 1009), "{code}");
    assert_eq!((number(&code, "/entries_2m"), number(&code, "/entries_4k")), (2, 9), "{code}");
    assert_eq!((&code["pays"], &code["mappings"][0]["file"]), (&true.into(), &"small".into()), "{code}");
    assert_eq!(number(&code, "/mappings/0/bytes"), (6 << 20) + (65 << 12), "{code}");
    let told = words(&shown(&trace, &[]));
    for part in [
        "code: small uses about 1,009 pages of code of 4K: 3.9 MiB of 6.3 MiB in small. The instruction TLB has ",
        "text in huge pages needs 2 entries of 2M (of ",
        ") and 9 of 4K",
        "how: link with -Wl,-z,max-page-size=0x200000",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    let mut small = runs_code(20);
    small.exit(10);
    let trace = small.write();
    let told = words(&shown(&trace, &[]));
    assert!(told.contains("they fit into its first level") && !told.contains("how:"), "{told}");
    let mut none = program();
    none.exit(10);
    assert_eq!(line(&none.write(), &[])["code"], Value::Null);
}

/// A large mapping is touched in full, and a second one by halves; both stay.
fn large() -> SmallTrace {
    let mut small = program();
    small.event(10, anonymous(LARGE, 32 << 20));
    small.event(10, anonymous(HALF, 32 << 20));
    touches(&mut small, LARGE, 32 << 8, 1);
    touches(&mut small, HALF, 32 << 8, 2);
    // What is mapped in the last third is no reason for a pool.
    small.event(10, anonymous(SHORT, 32 << 20));
    touches(&mut small, SHORT, 32 << 8, 1);
    small
}

const LARGE: u64 = 0x10_0000_0000;
const HALF: u64 = 0x20_0000_0000;
const SHORT: u64 = 0x30_0000_0000;

/// What is said with a pool of 2 MiB that has `all` pages, of which `free` are free, `reserved` of them for mappings.
fn with_pool(trace: &Path, all: u64, free: u64, reserved: u64) -> Value {
    let root = tempfile::tempdir().expect("a directory");
    let pool = root.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pool).expect("it is made");
    for (name, number) in [("nr_hugepages", all), ("free_hugepages", free), ("resv_hugepages", reserved)] {
        std::fs::write(pool.join(name), format!("{number}\n")).expect("it is written");
    }
    let (mut command, prices) = (Command::new(env!("CARGO_BIN_EXE_quire")), crate::advise::prices());
    command.args(["advise", "--format", "json", "--baseline", "4K", "--prices"]).arg(&*prices).arg(trace);
    let output = command.env("QUIRE_SETTINGS", root.path()).output().expect("the command runs");
    let line: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
    line["hugetlb"].clone()
}

/// The number of pages that a command writes.
fn written(commands: &Value) -> Vec<u64> {
    let commands = commands.as_array().expect("commands").iter().filter_map(Value::as_str);
    commands
        .map(|command| command.split_whitespace().nth(1).expect("a number").parse().expect("a number"))
        .collect()
}

#[test]
fn a_pool_is_advised_for_what_is_large_lives_long_and_is_touched_in_full() {
    let mut small = large();
    small.exit(10);
    let trace = small.write();
    let pool = with_pool(&trace, 5, 2, 0);
    let mappings = pool["mappings"].as_array().unwrap_or_else(|| panic!("{pool}"));
    assert_eq!((mappings.len(), number(&mappings[0], "/address")), (1, LARGE), "{pool}");
    assert_eq!(
        (number(&pool, "/pages_2m"), &pool["pages_1g"]),
        (16, &Value::Null),
        "32 MiB of 1 GiB: {pool}"
    );
    assert_eq!(
        (number(&pool, "/faults_saved"), number(&pool, "/page_tables_saved_bytes")),
        ((32 << 8) - 16, 16 << 12)
    );
    // Two of five are free.
    assert_eq!((written(&pool["do"]), written(&pool["undo"])), (vec![19], vec![5]), "{pool}");
    assert_eq!(written(&with_pool(&trace, 40, 32, 0)["do"]), [0; 0], "the pool has them");
    assert_eq!(written(&with_pool(&trace, 40, 32, 32)["do"]), [56], "another program has mapped all of them");
    let said = words(&shown(&trace, &[]));
    let carry = "hugetlb: 16 pages of 2M carry what is large, lives long and is touched in full: anonymous memory at \
                 0x1000000000, 32.0 MiB. They save 8,176 faults";
    assert!(
        said.contains(carry) && said.contains("needs: 32.0 MiB set aside before the program starts"),
        "{said}"
    );
    let small = half_used();
    assert_eq!(line(&small, &[])["hugetlb"], Value::Null, "a heap of 4 MiB needs no pool");
}

/// Processes 11 and 12 run the same program, and each touches every so many pages of a mapping of 32 MiB.
fn twins(every: usize) -> tempfile::TempPath {
    let mut small = program();
    for pid in [11, 12] {
        let kind = ForkKind::SharedMemory;
        small.event(10, EventKind::Fork { child_pid: pid, child_tid: pid, flags: 0, kind });
        small.exec(pid);
        small.event(pid, anonymous(LARGE, 32 << 20));
        for page in (0..32 << 8).step_by(every) {
            small.event(pid, fault(LARGE + page * 4096, Access::Write, false));
        }
    }
    waits(&mut small, 32 << 9);
    [11, 12, 10].into_iter().for_each(|pid| small.exit(pid));
    small.write()
}

#[test]
fn all_processes_of_a_program_need_pages_of_a_pool() {
    let advised = |trace: &Path| line(trace, &[])["hugetlb"].clone();
    // Together they touch as much as one of them maps.
    let halves = advised(&twins(2));
    assert_eq!(halves, Value::Null, "{halves}");
    let full = advised(&twins(1));
    assert_eq!(number(&full, "/pages_2m"), 2 * 16, "each has its own: {full}");
    // A child of fork maps what its parent has touched, and copies a quarter of it.
    let mut small = large();
    small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0, kind: ForkKind::Copy });
    for page in 0..8 << 8 {
        small.event(11, fault(LARGE + page * 4096, Access::Write, true));
    }
    small.exit(11);
    small.exit(10);
    let forked = advised(&small.write());
    assert_eq!(number(&forked, "/pages_2m"), 16 + 4, "{forked}");
    // What is gone at the peak says nothing of how much of it would be touched.
    let mut small = program();
    small.event(10, anonymous(LARGE, 32 << 20));
    touches(&mut small, LARGE, 32 << 8, 1);
    waits(&mut small, 16 << 10);
    small.event(10, call(Call::Munmap, [LARGE, 32 << 20, 0, 0, 0, 0], 0));
    small.event(10, anonymous(SHORT, 48 << 20));
    touches(&mut small, SHORT, 48 << 8, 1);
    small.exit(10);
    assert_eq!(advised(&small.write()), Value::Null);
}

#[test]
fn huge_pages_that_the_program_maps_itself_are_counted() {
    let map = |addr: u64, len: u64, flags: u64, result: i64| {
        call(
            Call::Mmap,
            [0, len, 3, 0x22 | flags, u64::MAX, 0],
            if result < 0 { result } else { addr as i64 },
        )
    };
    let mut small = program();
    small.event(10, map(LARGE, 5 << 20, 0x4_0000, 0));
    small.event(10, map(HALF, 2 << 30, 0x4_0000 | 30 << 26, 0));
    small.event(10, map(SHORT, 1 << 30, 0x4_0000, -12));
    touches(&mut small, LARGE, 3 << 9, 512);
    small.event(10, call(Call::Munmap, [LARGE, 6 << 20, 0, 0, 0, 0], 0));
    small.event(10, map(LARGE + (1 << 30), 2 << 20, 0x4_0000, 0));
    waits(&mut small, 10);
    small.exit(10);
    let trace = small.write();
    let pool = with_pool(&trace, 1, 1, 0);
    assert_eq!(
        (number(&pool, "/used_2m"), number(&pool, "/used_1g"), number(&pool, "/refused")),
        (3, 2, 1),
        "{pool}"
    );
    // This machine has no pool of 1 GiB.
    assert_eq!((written(&pool["do"]), written(&pool["undo"])), (vec![3], vec![1]), "{pool}");
    let said = words(&shown(&trace, &[]));
    assert!(
        said.contains("the program maps 3 pages of 2M and 2 pages of 1G by itself at the most"),
        "{said}"
    );
    assert!(said.contains("1 mappings of huge pages were refused"), "{said}");
}

/// Process 10 makes process 11, which runs a program of its own, and process 12, which goes on with a copy.
fn family() -> tempfile::TempPath {
    let fork = |pid: u32, kind| EventKind::Fork { child_pid: pid, child_tid: pid, flags: 0, kind };
    let touch = |trace: &mut SmallTrace, pid: u32, start: u64, pages: u64| {
        (0..pages).for_each(|page| trace.event(pid, fault(start + page * 4096, Access::Write, false)));
    };
    let mut small = program();
    grow_heap(&mut small, 8 << 20);
    touch(&mut small, 10, HEAP, 512);
    small.event(10, fork(11, ForkKind::SharedMemory));
    small.exec(11);
    small.event(11, anonymous(LARGE, 1 << 20));
    touch(&mut small, 11, LARGE, 64);
    waits(&mut small, 300);
    small.exit(11);
    small.event(10, fork(12, ForkKind::Copy));
    small.event(12, anonymous(HALF, 1 << 20));
    touch(&mut small, 12, HALF, 100);
    small.exit(12);
    touch(&mut small, 10, HEAP + (2 << 20), 256);
    waits(&mut small, 300);
    small.exit(10);
    small.write()
}

#[test]
fn each_process_has_its_peak_and_its_memory_over_time() {
    let trace = family();
    let line = line(&trace, &[]);
    let set = &sets(&line)[0];
    let processes = set["processes"].as_array().unwrap_or_else(|| panic!("{set}"));
    let of =
        |pid: u64| processes.iter().find(|process| process["pid"] == pid).unwrap_or_else(|| panic!("{set}"));
    let page = 4096;
    assert_eq!(processes.len(), 3, "{set}");
    assert_eq!(number(of(10), "/peak_rss_bytes"), (512 + 256) * page, "{set}");
    // Until it started a program it had its parent's memory, which getrusage counts as its own.
    assert_eq!(number(of(11), "/peak_rss_bytes"), 512 * page, "{set}");
    assert_eq!(number(of(12), "/peak_rss_bytes"), (512 + 100) * page, "{set}");
    assert_eq!(number(set, "/peak_rss_bytes"), number(of(10), "/peak_rss_bytes"), "the most of one: {set}");
    let over_time = |pid: u64| -> Vec<u64> {
        of(pid)["resident"].as_array().expect("steps").iter().filter_map(Value::as_u64).collect()
    };
    let last = |pid: u64| over_time(pid).last().copied();
    assert_eq!((over_time(10).len(), last(10)), (48, Some((512 + 256) * page)), "{set}");
    assert_eq!((last(11), number(of(10), "/first_step")), (Some(64 * page), 0), "{set}");
    let (first, steps) = (number(of(11), "/first_step"), over_time(11).len() as u64);
    assert!(first > 10 && first + steps < 40 && steps > 5, "it lived from {first} for {steps}: {set}");
    assert_eq!(sets(&line)[1]["processes"].is_null(), line["best"] != sets(&line)[1]["folio"], "{line}");
    let said = shown(&trace, &[]);
    assert!(
        words(&said).contains("processes: 3, those with the highest peaks of resident memory: small"),
        "{said}"
    );
    assert!(said.contains(" 3.0 MiB\n") && said.contains(" 2.4 MiB\n"), "{said}");
    assert!(!shown(&half_used(), &[]).contains("processes:"), "one alone needs no list");
}

#[test]
fn first_touches_are_told_by_address_and_time() {
    let mut small = program();
    grow_heap(&mut small, 8 << 20);
    touches(&mut small, HEAP, 512, 1);
    small.event(10, anonymous(LARGE, 1 << 20));
    // No first touch: the page is there.
    (0..100).for_each(|page| small.event(10, fault(HEAP + page * 4096, Access::Write, true)));
    waits(&mut small, 1000);
    touches(&mut small, LARGE, 256, 1);
    small.exit(10);
    let line = line(&small.write(), &[]);
    let heat = &line["heat"];
    let rows = heat["rows"].as_array().unwrap_or_else(|| panic!("{line}"));
    let places: Vec<(u64, u64)> =
        rows.iter().map(|row| (number(row, "/start"), number(row, "/end"))).collect();
    let row = |start: u64| (start, start + (2 << 20));
    assert_eq!((number(heat, "/pid"), places), (10, vec![row(LARGE), row(HEAP)]), "{heat}");
    assert_eq!(heat["source"], "first_touches", "{heat}");
    let pages = |row: &Value| -> Vec<u64> {
        row["pages"].as_array().expect("steps").iter().filter_map(Value::as_u64).collect()
    };
    let (large, heap) = (pages(&rows[0]), pages(&rows[1]));
    assert_eq!((large.len(), large.iter().sum::<u64>(), heap.iter().sum::<u64>()), (48, 256, 512), "{heat}");
    assert_eq!((large[..24].iter().sum::<u64>(), heap[24..].iter().sum::<u64>()), (0, 0), "{heat}");
}

/// Programs probe address 0 on purpose, and get a signal each time.
#[test]
fn accesses_that_were_not_resolved_touch_nothing() {
    let mut small = program();
    grow_heap(&mut small, 8 << 20);
    touches(&mut small, HEAP, 1, 1);
    for _ in 0..100 {
        let (protection, kernel_mode, major, duration_ns) = (false, false, false, None);
        let access = Access::Read;
        small.event(10, EventKind::Fault { addr: 0, access, protection, kernel_mode, major, duration_ns });
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    let rows = line["heat"]["rows"].as_array().unwrap_or_else(|| panic!("{line}"));
    let starts: Vec<u64> = rows.iter().map(|row| number(row, "/start")).collect();
    assert_eq!(starts, [HEAP], "{}", line["heat"]);
}
