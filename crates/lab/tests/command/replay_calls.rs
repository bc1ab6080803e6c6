//! Replays of single calls: memory of a pool of huge pages, and segments of shared memory.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::small_trace::{anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, FileId, ForkKind, MapCause, PathId};

const HUGE: u64 = 2 << 20;
const POOL: u64 = 0x7000_0000_0000;
const EINVAL: i64 = -22;

#[test]
fn a_call_that_would_split_a_huge_page_is_not_judged() {
    let mut trace = program();
    trace.event(10, call(Call::Mmap, [0, 4 * HUGE, 3, 0x4_0022, u64::MAX, 0], POOL as i64));
    trace.event(10, call(Call::Munmap, [POOL, HUGE / 2, 0, 0, 0, 0], EINVAL));
    trace.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 17, kind: ForkKind::Copy });
    trace.event(11, call(Call::Munmap, [POOL + HUGE, 3 * HUGE / 2, 0, 0, 0, 0], EINVAL));
    trace.exit(11);
    // Memory of single pages takes the place of the first huge page.
    trace.event(10, call(Call::Munmap, [POOL, HUGE, 0, 0, 0, 0], 0));
    trace.event(10, anonymous(POOL, HUGE));
    assert!(replays(&trace.write()));
    trace.event(10, call(Call::Munmap, [POOL, HUGE / 2, 0, 0, 0, 0], EINVAL));
    assert!(!replays(&trace.write()), "Linux takes any pages of this memory away");
}

/// Whether a check finds no divergence.
fn replays(trace: &Path) -> bool {
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
    quire.args(["replay", "--check"]).arg(trace).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    let output = quire.output().expect("the command runs");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    output.status.success()
}

#[test]
fn a_detached_segment_goes_with_all_its_pieces() {
    const SEGMENT: u64 = 0x7000_0000_0000;
    const NO_REPLACE: u64 = 0x10_0022;
    let mut trace = program();
    let (cause, start, len, prot, flags, file_offset) = (MapCause::Other, SEGMENT, 0x4000, 3, 1, 0);
    let file = Some(FileId { device: 1, inode: 7, path: PathId(2) });
    trace.event(10, EventKind::Map { cause, start, len, prot, flags, file, file_offset });
    trace.event(10, call(Call::Munmap, [SEGMENT, 0x1000, 0, 0, 0, 0], 0));
    trace.event(10, call(Call::Mprotect, [SEGMENT + 0x2000, 0x1000, 1, 0, 0, 0], 0));
    trace.event(10, call(Call::Shmdt, [SEGMENT, 0, 0, 0, 0, 0], 0));
    let over = [SEGMENT, 0x4000, 3, NO_REPLACE, u64::MAX, 0];
    trace.event(10, call(Call::Mmap, over, SEGMENT as i64));
    assert!(replays(&trace.write()));
}

/// `MAP_DROPPABLE`, which holds the state of glibc's `getrandom`: private memory that a child finds wiped.
#[test]
fn droppable_memory_is_private_and_wiped_by_a_fork() {
    const AT: u64 = 0x7000_0000_0000;
    let mut trace = program();
    trace.event(10, call(Call::Mmap, [0, 0x10000, 3, 0x28, u64::MAX, 0], AT as i64));
    trace.event(10, fault(AT, Access::Write, false));
    trace.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 17, kind: ForkKind::Copy });
    trace.event(11, fault(AT, Access::Write, false));
    trace.exit(11);
    trace.exit(10);
    let line = &checked(&trace.write());
    let figure = |field: &str| line.pointer(field).and_then(Value::as_u64);
    assert_eq!((figure("/faults/anon/count"), figure("/peak/shared")), (Some(2), Some(0)), "{line}");
    assert_eq!(figure("/peak/anonymous"), Some(2 << 12), "{line}");
}

/// The loader makes stacks executable by their lowest mapped page: `PROT_GROWSDOWN` means all that is below.
#[test]
fn a_stack_becomes_executable_down_to_its_start() {
    const STACK: u64 = 0x7ffd_0000_0000;
    const GROWS_DOWN: u64 = 0x0100_0000;
    let mut trace = program();
    trace.event(10, fault(STACK - 0x8000, Access::Write, false));
    trace.event(10, call(Call::Mprotect, [STACK + 0x2_0000, 0x1000, 7 | GROWS_DOWN, 0, 0, 0], 0));
    for at in [STACK - 0x8000, STACK + 0x1000] {
        trace.event(10, fault(at, Access::Execute, false));
    }
    trace.exit(10);
    let line = &checked(&trace.write());
    assert_eq!(line["differences"], 0, "{line}");
}

/// The JSON line of a check that finds no divergence.
fn checked(trace: &Path) -> Value {
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
    quire.args(["replay", "--check", "--json", "-"]).arg(trace);
    let output = quire.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}
