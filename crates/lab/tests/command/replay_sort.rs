//! The machine that `quire replay` makes is large enough for every size of folios: memory decides no figure of a sweep.

use std::process::Command;

use crate::advise::{number, touches};
use crate::small_trace::{SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const PAGES: u64 = MIB / 4096;

/// The lines that are sorted, what says where each begins, and the arenas of the threads.
const LINES: u64 = 0x10_0000_0000;
const PLACES: u64 = 0x20_0000_0000;
const ARENAS: u64 = 0x30_0000_0000;

/// Memory as `sort` uses it for 200 MiB: it reads the lines into a buffer from below while the places of their beginnings grow from
/// above. Threads merge in arenas of 64 MiB of which they use little. Then the buffer goes, and the output has one of its own.
fn sort() -> SmallTrace {
    let mut trace = program();
    trace.event(10, anonymous(LINES, 200 * MIB));
    trace.event(10, anonymous(PLACES, 40 * MIB));
    for step in 0..200 {
        touches(&mut trace, LINES + step * MIB, PAGES, 1);
        for page in 0..PAGES / 5 {
            let at = PLACES + 40 * MIB - (step * (PAGES / 5) + page + 1) * 4096;
            trace.event(10, fault(at, Access::Write, false));
        }
    }
    for thread in 0..8 {
        let arena = ARENAS + thread * 64 * MIB;
        trace.event(10, anonymous(arena, 64 * MIB));
        // The first page of each 2 MiB.
        touches(&mut trace, arena, 64 * PAGES, 512);
    }
    trace.event(10, call(Call::Munmap, [LINES, 200 * MIB, 0, 0, 0, 0], 0));
    trace.event(10, anonymous(LINES, 64 * MIB));
    touches(&mut trace, LINES, 64 * PAGES, 1);
    trace.exit(10);
    trace
}

fn sweep(trace: &SmallTrace) -> Vec<Value> {
    let (file, directory) = (trace.write(), tempfile::tempdir().expect("a directory"));
    let json = directory.path().join("lines.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["replay", "--folio", "sweep", "--rounds", "1", "--json"]).arg(&json).arg(&file);
    let output =
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = std::fs::read_to_string(&json).expect("it is written");
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

#[test]
fn no_size_falls_back_in_a_sweep_of_a_large_sort() {
    let lines = sweep(&sort());
    assert_eq!(lines.len(), 9);
    for line in &lines {
        assert_eq!(number(line, "/faults_fell_back"), 0, "the size of the machine decides: {line}");
    }
    // Each page that is touched is a fault of its own.
    assert_eq!(
        number(&lines[0], "/faults_taken"),
        200 * (PAGES + PAGES / 5) + 8 * 32 + 64 * PAGES,
        "{}",
        lines[0]
    );
    assert!(number(&lines[8], "/faults_taken") < 1000, "{}", lines[8]);
}
