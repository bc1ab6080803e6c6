//! Replays of single calls: memory of a pool of huge pages, and segments of shared memory.

use std::path::Path;
use std::process::Command;

use crate::small_trace::{anonymous, call, program};
use lab::trace::{Call, EventKind, FileId, ForkKind, MapCause, PathId};

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
