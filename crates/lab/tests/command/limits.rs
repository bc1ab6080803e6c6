//! The limits on memory under which a program was recorded: they are in the recording, and explain what Linux refused.

use std::path::Path;
use std::process::{Command, Output};

use crate::small_trace::{SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, Limits, Overcommit, TraceReader};

const BASE: u64 = 1 << 30;
const ENOMEM: i64 = -12;

/// As on a machine with no limit set.
const CUSTOMARY: Limits = Limits {
    mappings: 65_530,
    overcommit: Overcommit::Guess,
    overcommit_ratio: 50,
    overcommit_bytes: 0,
    address_space: Limits::NONE,
    data: Limits::NONE,
    stack: 8 << 20,
    locked: 8 << 20,
};

fn replay(arguments: &[&str], trace: &SmallTrace) -> Output {
    let file = trace.write();
    let path: &Path = file.as_ref();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("replay").args(arguments).arg(path).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.output().expect("the command runs")
}

fn agrees(trace: &SmallTrace) {
    let output = replay(&["--check"], trace);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A program with so many mappings besides its stack, none beside another.
fn islands(count: u64) -> SmallTrace {
    let mut trace = program();
    (0..count).for_each(|number| trace.event(10, anonymous(BASE + number * 0x2000, 0x1000)));
    trace
}

#[test]
fn seventy_thousand_mappings_are_replayed_where_they_were_allowed() {
    let mut trace = islands(70_000);
    trace.under(Limits { mappings: 262_144, ..CUSTOMARY });
    agrees(&trace);
    // Version 1 of the format did not tell.
    agrees(&islands(70_000));
}

#[test]
fn what_the_limit_of_mappings_refused_is_no_divergence() {
    let mut trace = islands(65_529);
    trace.under(CUSTOMARY);
    let long = BASE + (1 << 30);
    trace.event(10, anonymous(long, 0x8000));
    trace.event(10, call(Call::Mmap, [0, 0x1000, 3, 0x22, u64::MAX, 0], ENOMEM));
    // Both ends would have been cut, and one was.
    trace.event(10, call(Call::Mprotect, [long + 0x1000, 0x1000, 1, 0, 0, 0], ENOMEM));
    trace.event(10, call(Call::Munmap, [long + 0x3000, 0x1000, 0, 0, 0, 0], ENOMEM));
    trace.event(10, call(Call::Madvise, [long + 0x1000, 0x1000, 15, 0, 0, 0], ENOMEM));
    agrees(&trace);
}

#[test]
fn what_no_limit_explains_still_diverges() {
    let mut trace = islands(10);
    trace.under(CUSTOMARY);
    // All of it is mapped, and taking rights away charges nothing.
    trace.event(10, call(Call::Mprotect, [BASE, 0x1000, 1, 0, 0, 0], ENOMEM));
    let output = replay(&["--check"], &trace);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("first divergence at event 12"), "{text}");
}

#[test]
fn memory_that_could_not_be_charged_is_no_divergence() {
    let mut trace = program();
    trace.under(Limits { data: 1 << 20, ..CUSTOMARY });
    trace.event(10, call(Call::Mmap, [0, 0x1000, 1, 0x22, u64::MAX, 0], BASE as i64));
    trace.event(10, call(Call::Mprotect, [BASE, 0x1000, 3, 0, 0, 0], ENOMEM));
    trace.event(10, call(Call::Mremap, [BASE, 0x1000, 0x4000, 0, 0, 0], ENOMEM));
    agrees(&trace);
}

#[test]
fn a_stack_does_not_grow_beyond_its_limit() {
    let mut trace = program();
    trace.under(Limits { stack: 1 << 20, ..CUSTOMARY });
    trace.event(10, unresolved(0x7ffd_0000_0000 - (4 << 20)));
    // Had the stack grown, this would be in its way.
    let below = 0x7ffd_0000_0000 - (3 << 20);
    trace.event(10, call(Call::Mmap, [below, 0x1000, 3, 0x10_0022, u64::MAX, 0], below as i64));
    trace.event(10, fault(below, Access::Write, false));
    let output = replay(&["--check", "--json", "-"], &trace);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(r#""faults_given_up":1"#), "{output:?}");
}

#[test]
fn an_access_below_a_large_mapping_is_a_signal() {
    let mut trace = program();
    trace.under(Limits { stack: 1 << 20, ..CUSTOMARY });
    trace.event(10, anonymous(BASE, 4 << 20));
    trace.event(10, unresolved(BASE - 0x1000));
    let output = replay(&["--check", "--json", "-"], &trace);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(r#""faults_given_up":0"#), "{output:?}");
    assert!(text.contains(r#""signal":{"count":1"#), "{text}");
}

/// A fault that was not resolved.
fn unresolved(addr: u64) -> EventKind {
    match fault(addr, Access::Write, false) {
        EventKind::Fault { addr, access, protection, kernel_mode, major, .. } => {
            EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns: None }
        }
        other => other,
    }
}

#[test]
fn a_recording_tells_the_limits_that_the_program_started_under() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, quire) = (folder.path().join("true.qtrace"), env!("CARGO_BIN_EXE_quire"));
    let script = format!("ulimit -S -s 4321; exec '{quire}' record -o '{}' -- true", file.display());
    let output = Command::new("sh").args(["-c", &script]).output().expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let limits = TraceReader::open(&file).expect("a trace").header().limits.expect("they are told");
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("Linux tells");
    assert_eq!((limits.stack, limits.mappings.to_string().as_str()), (4321 << 10, most.trim()));
}
