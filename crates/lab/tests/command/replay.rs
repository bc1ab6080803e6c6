//! `quire replay` as a user runs it: the bundled traces in lockstep, exact counts of a small trace, damaged files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::bundled::bundled;
use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, ForkKind, TraceReader};
use serde_json::Value;

fn replay(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("replay").args(arguments).args(files);
    // What this user has measured of his machine is no part of a test.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what is printed is text")
}

fn succeeded(output: Output) -> Output {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// Runs with `--json -` and gives the lines.
fn lines(arguments: &[&str], files: &[&Path]) -> Vec<Value> {
    let output = succeeded(replay(&[arguments, &["--json", "-"]].concat(), files));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

fn trace(name: &str) -> PathBuf {
    bundled().into_iter().find(|path| path.ends_with(name)).expect("the trace is bundled")
}

fn number(line: &Value, pointer: &str) -> u64 {
    line.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {pointer} in {line}"))
}

fn faults(line: &Value, kind: &str) -> u64 {
    line.pointer(&format!("/faults/{kind}/count")).and_then(Value::as_u64).unwrap_or(0)
}

/// Every bundled trace in lockstep with the model, under `folio`.
fn lockstep(folio: &str) -> Vec<Value> {
    let paths = bundled();
    let files: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let lines = lines(&["--check", "--folio", folio], &files);
    assert_eq!(lines.len(), files.len());
    for (line, path) in lines.iter().zip(&files) {
        assert_eq!(line["trace"], path.to_str().expect("a name"));
        assert_eq!((&line["checked"], number(line, "/differences")), (&Value::Bool(true), 0), "{line}");
        assert_eq!(number(line, "/frames_leaked"), 0, "{line}");
        let recorded = TraceReader::open(path)
            .expect("it opens")
            .filter(|event| matches!(event.as_ref().expect("whole").kind, EventKind::Fault { .. }));
        let counted: u64 =
            line["faults"].as_object().expect("faults").keys().map(|kind| faults(line, kind)).sum();
        assert_eq!(counted + number(line, "/faults_given_up"), recorded.count() as u64, "{line}");
    }
    lines
}

#[test]
fn bundled_traces_in_single_frames() {
    for line in lockstep("4K") {
        assert_eq!(
            number(&line, "/peak/wasted"),
            0,
            "single frames come only where they are touched: {line}"
        );
        let folios = line["folios"].as_object().expect("folios");
        assert_eq!(folios.keys().collect::<Vec<_>>(), ["4K"]);
    }
}

#[test]
fn bundled_traces_in_folios_of_64_kib() {
    let wasted: u64 = lockstep("64K").iter().map(|line| number(line, "/peak/wasted")).sum();
    assert!(wasted > 0, "some program leaves part of some folio alone");
}

#[test]
fn bundled_traces_in_folios_of_2_mib() {
    let large: u64 = lockstep("2M")
        .iter()
        .map(|line| line.pointer("/folios/2M").and_then(Value::as_u64).unwrap_or(0))
        .sum();
    assert!(large > 50, "only {large} large folios in all traces");
}

#[test]
fn a_sweep_has_a_line_for_each_size() {
    let path = trace("gcc.qtrace");
    let output = succeeded(replay(&["--folio", "sweep"], &[&path]));
    let printed = text(&output.stdout);
    let lines = lines(&["--folio", "sweep", "--rounds", "1"], &[&path]);
    let names: Vec<&str> = lines.iter().map(|line| line["folio"].as_str().expect("a name")).collect();
    assert_eq!(names, ["4K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "2M"]);
    for line in &lines {
        let row = printed
            .lines()
            .find(|row| row.split_whitespace().nth(1) == line["folio"].as_str())
            .unwrap_or_else(|| panic!("no row for {}:\n{printed}", line["folio"]));
        for figure in [number(line, "/faults_taken"), number(line, "/peak/wasted") / 1024] {
            assert!(row.contains(&figure.to_string()), "{figure} is not in {row}");
        }
        assert!(number(line, "/faults_taken") <= number(&lines[0], "/faults_taken"), "{line}");
        assert!(number(line, "/peak/wasted") >= number(&lines[0], "/peak/wasted"), "{line}");
        assert!(number(line, "/quire_ns") > 0);
        assert_eq!(number(line, "/faults_fell_back"), 0, "the size of the machine decides: {line}");
    }
}

#[test]
fn a_json_line_says_everything() {
    let path = trace("sqlite.qtrace");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("out.json");
    let printed = succeeded(replay(&["--json", file.to_str().expect("a name")], &[&path]));
    assert!(text(&printed.stdout).contains("memory at its peak"), "{}", text(&printed.stdout));
    let written = std::fs::read_to_string(&file).expect("it is written");
    assert_eq!(written.lines().count(), 1);
    let line: Value = serde_json::from_str(&written).expect("a JSON object");
    assert_eq!((line["program"].as_str(), line["folio"].as_str()), (Some("sqlite3"), Some("4K")));
    let kinds = ["anonymous", "file", "shared", "page_tables", "metadata", "records"];
    let sum: u64 = kinds.iter().map(|kind| number(&line, &format!("/peak/{kind}"))).sum();
    assert_eq!(sum, number(&line, "/peak/total"), "the kinds are all there is: {line}");
    assert_eq!(
        number(&line, "/peak/touched") + number(&line, "/peak/wasted"),
        number(&line, "/peak/anonymous")
    );
    for pointer in
        ["/flushes/local", "/flushes/ipis", "/bytes_cleared", "/clock_ns", "/memory_bytes", "/cpus"]
    {
        number(&line, pointer);
    }
    for verb in ["mmap", "brk", "mremap", "munmap"] {
        for field in ["count", "quire_ns", "quire_median_ns", "linux_ns", "linux_median_ns"] {
            assert!(number(&line, &format!("/verbs/{verb}/{field}")) > 0, "{verb} {field}: {line}");
        }
    }
    assert!(line["machine"].is_object() && line["commit"].is_string() && line["command"].is_array());
}

/// Five pages touched in a mapping of 64 KiB, a fork, a store by each side, and the ends.
fn forking() -> SmallTrace {
    let mut trace = program();
    trace.event(10, anonymous(0x1000_0000, 0x10000));
    for page in 0..4 {
        trace.event(10, fault(0x1000_0000 + page * 0x1000, Access::Write, false));
    }
    trace.event(10, fault(0x1000_8000, Access::Read, false));
    trace.event(10, call(Call::Brk, [0; 6], HEAP as i64));
    trace.event(10, call(Call::Brk, [HEAP + 0x2000, 0, 0, 0, 0, 0], (HEAP + 0x2000) as i64));
    trace.event(10, fault(HEAP, Access::Write, false));
    let kind = ForkKind::Copy;
    trace.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 17, kind });
    trace.event(10, call(Call::Clone, [17, 0, 0, 0, 0, 0], 11));
    trace.event(11, fault(0x1000_1000, Access::Write, true));
    trace.event(10, fault(0x1000_1000, Access::Write, true));
    trace.event(10, fault(0x1000_2000, Access::Write, true));
    trace.exit(11);
    trace.event(10, fault(0x1000_3000, Access::Write, true));
    trace.exit(10);
    trace
}

#[test]
fn a_load_of_untouched_memory_maps_linux_huge_page_of_zeroes() {
    const BASE: u64 = 0x1000_0000;
    let mut trace = program();
    trace.event(10, anonymous(BASE, 4 << 20));
    let second = BASE + (2 << 20);
    for addr in [BASE, BASE + 0x1000, second] {
        trace.event(10, fault(addr, Access::Read, false));
    }
    for addr in [BASE + 0x5000, BASE + 0x6000] {
        trace.event(10, fault(addr, Access::Write, false));
    }
    trace.event(10, call(Call::Madvise, [second, 2 << 20, 4, 0, 0, 0], 0));
    trace.event(10, fault(second, Access::Read, false));
    trace.exit(10);
    let file = trace.write();
    let line = &lines(&["--check", "--folio", "2M"], &[&file])[0];
    let count = |kind| faults(line, kind);
    assert_eq!((count("anon-zero"), count("anon"), count("absorbed")), (3, 1, 2), "{line}");
    assert_eq!(line["folios"], serde_json::json!({ "2M": 1 }));
    assert_eq!(number(line, "/peak/wasted"), (512 - 4) << 12, "loads count as touches: {line}");
    let line = &lines(&["--check", "--folio", "1M"], &[&file])[0];
    assert_eq!(
        (faults(line, "anon-zero"), faults(line, "absorbed")),
        (4, 0),
        "no other size has one: {line}"
    );
}

#[test]
fn faults_and_waste_of_a_small_trace_are_exact() {
    let file = forking().write();
    let line = &lines(&["--check", "--folio", "4K"], &[&file])[0];
    let count = |kind| faults(line, kind);
    assert_eq!((count("anon"), count("anon-zero")), (5, 1), "{line}");
    assert_eq!((count("cow-copy"), count("cow-reuse"), count("absorbed")), (2, 2, 0), "{line}");
    assert_eq!((number(line, "/processes"), number(line, "/verbs/fork/count")), (2, 1));
    assert_eq!((number(line, "/peak/anonymous"), number(line, "/peak/wasted")), (7 << 12, 0), "{line}");
    let line = &lines(&["--check", "--folio", "64K"], &[&file])[0];
    let count = |kind| faults(line, kind);
    assert_eq!((count("anon"), count("anon-zero")), (2, 0), "the heap has no room for a folio: {line}");
    assert_eq!((count("absorbed"), count("cow-copy"), count("cow-reuse")), (4, 2, 2), "{line}");
    assert_eq!(line["folios"], serde_json::json!({ "4K": 3, "64K": 1 }));
    // 16 pages of the folio, the heap's, and two copies; of the folio 11 pages were never touched.
    assert_eq!(
        (number(line, "/peak/anonymous"), number(line, "/peak/wasted")),
        (19 << 12, 11 << 12),
        "{line}"
    );
}

#[test]
fn a_child_that_shares_memory_works_in_its_parents() {
    let mut trace = program();
    trace.event(10, anonymous(0x1000_0000, 0x4000));
    let kind = ForkKind::SharedMemory;
    trace.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0x4111, kind });
    trace.event(11, fault(0x1000_0000, Access::Write, false));
    trace.exec(11);
    trace.event(11, anonymous(0x1000_0000, 0x4000));
    trace.event(11, fault(0x1000_0000, Access::Write, false));
    trace.event(10, fault(0x1000_0000, Access::Read, false));
    trace.exit(11);
    trace.exit(10);
    let file = trace.write();
    let line = &lines(&["--check"], &[&file])[0];
    assert_eq!((faults(line, "anon"), faults(line, "spurious")), (2, 1), "{line}");
    assert_eq!(number(line, "/verbs/exit/count"), 2, "{line}");
}

#[test]
fn threads_on_two_cpus_make_their_flushes_remote() {
    let mut trace = program();
    trace.event(10, anonymous(0x1000_0000, 0x4000));
    trace.thread(10, 12);
    trace.on_thread(10, 12, fault(0x1000_0000, Access::Write, false));
    trace.event(10, call(Call::Munmap, [0x1000_0000, 0x4000, 0, 0, 0, 0], 0));
    trace.exit(10);
    let file = trace.write();
    let two = &lines(&["--check"], &[&file])[0];
    let one = &lines(&["--check", "--cpus", "1"], &[&file])[0];
    assert_eq!((number(two, "/flushes/ipis") > 0, number(one, "/flushes/ipis")), (true, 0), "{two} {one}");
}

#[test]
fn an_ordinary_users_trace_is_replayed_with_guesses() {
    let mut trace = program();
    trace.as_user();
    trace.event(10, anonymous(0x1000_0000, 0x4000));
    trace.event(10, fault(0x1000_0000, Access::Unknown, false));
    trace.event(10, call(Call::Mprotect, [0x1000_0000, 0x4000, 1, 0, 0, 0], 0));
    trace.event(10, fault(0x1000_1000, Access::Unknown, false));
    trace.exit(10);
    let file = trace.write();
    let output = succeeded(replay(&["--check"], &[&file]));
    assert!(text(&output.stdout).contains("ordinary user"), "{}", text(&output.stdout));
    let line = &lines(&["--check"], &[&file])[0];
    assert_eq!((faults(line, "anon"), faults(line, "anon-zero")), (1, 1), "{line}");
}

#[test]
fn faults_of_an_ordinary_user_that_are_not_taken_are_counted() {
    let mut trace = program();
    trace.as_user();
    trace.event(10, anonymous(0x1000_0000, 0x10000));
    (0..16).for_each(|page| trace.event(10, fault(0x1000_0000 + page * 4096, Access::Unknown, false)));
    trace.exit(10);
    let line = &lines(&["--folio", "64K"], &[&trace.write()])[0];
    assert_eq!((faults(line, "anon"), faults(line, "absorbed")), (1, 15), "{line}");
}

#[test]
fn an_answer_that_is_not_linuxs_is_told_and_fails_a_check() {
    let mut trace = program();
    trace.event(10, anonymous(0x1000_0000, 0x4000));
    // Recorded as refused, for which there is no reason.
    trace.event(10, call(Call::Munmap, [0x1000_0000, 0x4000, 0, 0, 0, 0], -22));
    trace.exit(10);
    let file = trace.write();
    let plain = succeeded(replay(&[], &[&file]));
    assert!(text(&plain.stdout).contains("1 answers differ from the recorded ones, the first at event 3"));
    let checked = replay(&["--check"], &[&file]);
    let error = text(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1), "{error}");
    assert!(error.contains("first divergence at event 3: Munmap"), "{error}");
    let both = replay(&["--check"], &[&file, &forking().write()]);
    assert_eq!(both.status.code(), Some(1));
    assert!(text(&both.stdout).contains("no divergence"), "the other trace is replayed all the same");
}

/// A hole or memory without rights stops a lock, and what is before it is locked: it cannot be given up then.
#[test]
fn a_failed_lock_has_locked_a_part() {
    let (addr, len) = (0x7000_0000_0000, 0x4000);
    for (stop, locked) in [
        (call(Call::Munmap, [addr + 0x2000, 0x1000, 0, 0, 0, 0], 0), 0x2000),
        (call(Call::Mprotect, [addr + 0x2000, 0x1000, 0, 0, 0, 0], 0), len),
    ] {
        let mut trace = program();
        trace.event(10, anonymous(addr, len));
        trace.event(10, stop);
        trace.event(10, call(Call::Mlock, [addr, len, 0, 0, 0, 0], -12));
        for page in (0..len).step_by(0x1000).filter(|page| locked == len || *page != 0x2000) {
            let result = if page < locked { -22 } else { 0 };
            trace.event(10, call(Call::Madvise, [addr + page, 0x1000, 4, 0, 0, 0], result));
        }
        trace.exit(10);
        let line = &lines(&["--check"], &[&trace.write()])[0];
        assert_eq!(number(line, "/differences"), 0, "{line}");
    }
}

/// A limit refuses a lock whole.
#[test]
fn a_lock_that_a_limit_refused_has_locked_nothing() {
    let (addr, len) = (0x7000_0000_0000, 0x4000);
    let mut trace = program();
    trace.event(10, anonymous(addr, len));
    trace.event(10, call(Call::Mlock, [addr, len, 0, 0, 0, 0], -12));
    trace.event(10, call(Call::Madvise, [addr, len, 4, 0, 0, 0], 0));
    trace.exit(10);
    let line = &lines(&["--check"], &[&trace.write()])[0];
    assert_eq!(number(line, "/differences"), 0, "{line}");
}

/// An address that would not be taken is refused all the same.
#[test]
fn a_move_that_leaves_a_mapping_and_names_a_bad_address_fails() {
    let addr = 0x7000_0000_0000;
    let mut trace = program();
    trace.event(10, anonymous(addr, 0x4000));
    for target in [addr + 1, addr + 0x1000, 1 << 47] {
        trace.event(10, call(Call::Mremap, [addr, 0x2000, 0x2000, 5, target, 0], -22));
    }
    trace.exit(10);
    let line = &lines(&["--check"], &[&trace.write()])[0];
    assert_eq!(number(line, "/differences"), 0, "{line}");
}

#[test]
fn what_is_recorded_here_can_be_replayed_here() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("own.qtrace");
    for tier in ["privileged", "user"] {
        // Forks, execs, pipes, and Quire itself with its arena: tables, files and a large shared mapping.
        let script = format!(
            "for i in 1 2 3; do echo $i | cat | wc -c; done; {} replay --check --memory 128M {}",
            env!("CARGO_BIN_EXE_quire"),
            trace("gcc.qtrace").display()
        );
        let recorded = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["record", "-q", "--tier", tier, "-o"])
            .arg(&file)
            .args(["--", "sh", "-c", &script])
            .output()
            .expect("the command runs");
        if !recorded.status.success() {
            let error = text(&recorded.stderr);
            assert!(error.lines().count() == 1 && error.contains("; "), "no cure is named: {error}");
            println!("this machine does not permit the tier {tier}: {error}");
            continue;
        }
        for folio in ["4K", "2M"] {
            let line = &lines(&["--check", "--folio", folio], &[&file])[0];
            assert_eq!((line["recorded"]["tier"].as_str(), number(line, "/differences")), (Some(tier), 0));
            assert!(number(line, "/processes") > 6 && number(line, "/faults_taken") > 1000, "{line}");
        }
    }
}

/// One line on standard error that says `what`, nothing on standard output, no file, exit code 1.
fn refused(what: &str, file: &Path, arguments: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("out.json");
    let good = trace("gcc.qtrace");
    let arguments = [arguments, &["--json", json.to_str().expect("a name"), "--check"]].concat();
    let output = replay(&arguments, &[&good, file]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(what) && error.lines().count() == 1, "wanted `{what}`, got {error}");
    assert!(error.contains(file.to_str().expect("a name")), "{error}");
    assert_eq!(
        std::fs::read_dir(directory.path()).expect("it is there").count(),
        0,
        "nothing is half written"
    );
    assert!(arguments.contains(&"--memory") || output.stdout.is_empty(), "{}", text(&output.stdout));
}

#[test]
fn damaged_files_are_refused_before_anything_runs() {
    let whole = std::fs::read(trace("gcc.qtrace")).expect("it is there");
    let directory = tempfile::tempdir().expect("a directory");
    let damaged = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("it is written");
        path
    };
    let mut version = whole.clone();
    version[8] = 99;
    let mut flipped = whole.clone();
    flipped[20000] ^= 4;
    refused("cut short; copy the file again", &damaged("cut", &whole[..20000]), &[]);
    refused("corrupt after event", &damaged("flipped", &flipped), &[]);
    refused("trace format version 99, but this build reads", &damaged("version", &version), &[]);
    refused("not a Quire trace; give a file that `quire record`", &damaged("foreign", b"#!/bin/sh\n"), &[]);
    refused("No such file or directory (os error 2); check the path", &directory.path().join("absent"), &[]);
}

#[test]
fn too_little_memory_is_one_line_that_says_how_to_give_more() {
    let error = |arguments: &[&str]| {
        let output = replay(arguments, &[&trace("redis.qtrace")]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        error.lines().last().unwrap_or_default().to_owned()
    };
    for arguments in [&["--memory", "48M"][..], &["--memory", "48M", "--check"], &["--memory", "16M"]] {
        let error = error(arguments);
        assert!(
            error.contains("out of memory at event") && error.contains("give more than --memory"),
            "{error}"
        );
    }
}

/// Linux gives the stack of a thread (`MAP_STACK`) single pages under every setting, since version 6.7.
#[test]
fn the_stack_of_a_thread_has_single_pages() {
    let taken = |flags: u64| {
        let mut trace = program();
        let len = 2 << 20;
        trace.event(10, call(Call::Mmap, [0, len, 3, 0x22 | flags, u64::MAX, 0], HEAP as i64));
        for page in 0..16 {
            trace.event(10, fault(HEAP + page * 4096, Access::Write, false));
        }
        trace.exit(10);
        number(&lines(&["--folio", "64K", "--check"], &[&trace.write()])[0], "/faults_taken")
    };
    assert_eq!((taken(0), taken(0x2_0000)), (1, 16));
}

/// Linux refused it, maybe by a limit that the program has set itself.
#[test]
fn a_refused_access_below_a_stack_is_counted_and_brings_in_nothing() {
    const STACK: u64 = 0x7ffd_0000_0000;
    let replayed = |refused: bool| {
        let mut trace = program();
        trace.event(10, fault(STACK, Access::Write, false));
        if refused {
            let (addr, access) = (STACK - 0x10000, Access::Write);
            let (protection, kernel_mode, major, duration_ns) = (false, false, false, None);
            trace.event(10, EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns });
        }
        trace.exit(10);
        lines(&["--check"], &[&trace.write()]).remove(0)
    };
    let (with, without) = (replayed(true), replayed(false));
    assert_eq!((number(&with, "/faults_given_up"), faults(&with, "anon")), (1, 1), "{with}");
    assert_eq!(number(&with, "/peak/anonymous"), number(&without, "/peak/anonymous"), "{with}");
}
