//! What `quire replay` takes of the host: it is estimated before anything runs, and what is not there is refused.

use std::path::Path;
use std::process::{Command, Output};

use crate::small_trace::{SmallTrace, anonymous, fault, program};
use lab::trace::{Access, EventKind, ForkKind};

const GIB: u64 = 1 << 30;

fn replay(arguments: &str, trace: &SmallTrace) -> Output {
    limited("unlimited", arguments, trace)
}

/// With so many KiB of address space for all that the process maps.
fn limited(kib: &str, arguments: &str, trace: &SmallTrace) -> Output {
    let file = trace.write();
    let path: &Path = file.as_ref();
    let quire = env!("CARGO_BIN_EXE_quire");
    let script =
        format!("ulimit -v {kib}; exec '{quire}' replay --rounds 1 {arguments} '{}'", path.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    shell.output().expect("the command runs")
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    // That a build of the tests is a slow one is said besides.
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("without --release")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("quire: "), "{text}");
    lines[0].to_owned()
}

/// So many pages that are stored to, a gibibyte apart.
fn sparse(pages: u64) -> SmallTrace {
    let mut trace = program();
    for page in 0..pages {
        let at = (page + 1) * GIB;
        trace.event(10, anonymous(at, 2 << 20));
        trace.event(10, fault(at, Access::Write, false));
    }
    trace
}

fn small() -> SmallTrace {
    let mut trace = program();
    trace.event(10, anonymous(GIB, 2 << 20));
    trace.event(10, fault(GIB, Access::Write, false));
    trace
}

#[test]
fn a_machine_larger_than_the_host_is_refused() {
    for check in ["", "--check "] {
        let line = refusal(&replay(&format!("{check}--memory 64T"), &small()));
        assert!(line.contains("take") && line.contains("--memory-limit"), "{line}");
    }
}

#[test]
fn a_limit_is_obeyed_to_the_step() {
    let output = replay("--memory 256M --memory-limit 280M", &small());
    assert!(output.status.success(), "{output:?}");
    let line = refusal(&replay("--memory 256M --memory-limit 278M", &small()));
    assert!(line.contains("folios of 4K") && line.contains("280M") && line.contains("278M"), "{line}");
}

#[test]
fn sparse_memory_costs_what_it_touches() {
    // 1024 pages with two page tables each are 12 MiB, of a machine of 256 MiB.
    let output = limited("500000", "--folio 4K", &sparse(1024));
    assert!(output.status.success(), "{output:?}");
    let output = replay("--folio 4K --check --memory-limit 384M", &sparse(1024));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_sweep_leaves_out_the_sizes_that_there_is_no_memory_for() {
    // The smallest machine, of 256 MiB, has room for 1024 folios of 64 KiB with their tables.
    let output = replay("--folio sweep --memory-limit 384M --json -", &sparse(1024));
    let refused = String::from_utf8(output.stderr.clone()).expect("text");
    let left_out = |size: &str| refused.contains(&format!("folios of {size} need"));
    assert!(left_out("2M") && left_out("1M") && !left_out("64K"), "{refused}");
    assert_eq!(output.status.code(), Some(1), "what was left out shows in the exit code");
    let lines = String::from_utf8(output.stdout).expect("text");
    let replayed = lines.lines().count();
    assert_eq!(refused.matches("folios of ").count(), 9 - replayed, "{refused}");
    assert!(lines.contains(r#""folio":"64K""#) && !lines.contains(r#""folio":"2M""#), "{lines}");
}

#[test]
fn a_trace_that_needs_more_than_the_limit_is_refused_where_it_does() {
    let line = refusal(&replay("--memory-limit 32M", &sparse(4096)));
    assert!(line.contains("event ") && line.contains("--memory-limit"), "{line}");
}

/// Taken faults of the one replay, and those of them that found no free folio.
fn faults(output: &Output) -> (u64, u64) {
    assert!(output.status.success(), "{output:?}");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    let number = |name: &str| line[name].as_u64().expect("a number");
    (number("faults_taken"), number("faults_fell_back"))
}

/// The default machine once had too few folios of 1 MiB for a program that fills its memory, since the allocator's
/// own records were in most of them.
#[test]
fn the_default_machine_has_a_folio_for_every_fault() {
    let (mebibyte, pages) = (1 << 20, 256);
    let mut filling = program();
    filling.event(10, anonymous(GIB, 200 * mebibyte));
    (0..200 * pages).for_each(|page| filling.event(10, fault(GIB + page * 4096, Access::Write, false)));
    assert_eq!(faults(&replay("--folio 1M --json -", &filling)), (200, 0));
    let sizes = ["16K", "64K", "256K", "1M", "2M"];
    for size in sizes {
        assert_eq!(faults(&replay(&format!("--folio {size} --json -"), &sparse(128))), (128, 0), "{size}");
    }
}

#[test]
fn a_size_that_the_machine_has_too_few_folios_for_is_named() {
    // One block more than the machine has, and the page tables are in others.
    let (taken, fell_back) = faults(&replay("--folio 2M --memory 64M --json -", &sparse(33)));
    assert!(taken == 33 && (2..9).contains(&fell_back), "{fell_back} of {taken}");
    for folio in ["2M", "sweep"] {
        let output = replay(&format!("--folio {folio} --memory 64M"), &sparse(33));
        let said = String::from_utf8(output.stdout).expect("text");
        let line = format!("{fell_back} faults found no free folio of 2M in 64M");
        assert!(said.contains(&line) && said.matches("no free folio").count() == 1, "{said}");
    }
}

/// 180 MiB at this address that process 10 has stored to, and a child that has the pages too.
fn forked(at: u64) -> SmallTrace {
    let mut trace = program();
    stores(&mut trace, 10, at, false);
    trace.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 17, kind: ForkKind::Copy });
    trace
}

/// Stores to each page of 180 MiB, which are mapped before if nothing is there.
fn stores(trace: &mut SmallTrace, pid: u32, at: u64, there: bool) {
    const PAGES: u64 = 180 << 8;
    if !there {
        trace.event(pid, anonymous(at, PAGES * 4096));
    }
    (0..PAGES).for_each(|page| trace.event(pid, fault(at + page * 4096, Access::Write, there)));
}

/// The copies of the pages that a child still has from before are memory too.
#[test]
fn the_default_machine_holds_what_a_child_keeps() {
    let mut snapshot = forked(GIB);
    stores(&mut snapshot, 10, GIB, true);
    snapshot.exit(11);
    snapshot.exit(10);
    assert_eq!(faults(&replay("--folio 4K --json -", &snapshot)).1, 0);
    let mut daemon = forked(GIB);
    daemon.exit(10);
    stores(&mut daemon, 11, 2 * GIB, false);
    daemon.exit(11);
    assert_eq!(faults(&replay("--folio 4K --json -", &daemon)).1, 0);
    // A page of both is one frame, and a child that starts a program gives all of them up.
    let mut started = forked(GIB);
    started.exec(11);
    stores(&mut started, 10, GIB, true);
    started.exit(10);
    let output = replay("--folio 4K --memory-limit 400M --json -", &started);
    assert_eq!(faults(&output).1, 0);
}
