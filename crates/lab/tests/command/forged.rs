//! Traces with checksums that hold and events that no program made: each is refused in one line before anything runs, or
//! replayed in a time that its length explains.

use std::path::Path;
use std::process::{Command, Output};

use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, FileId, ForkKind, MapCause, PathId, PopulateCause, Syscall};

/// Longer than any mapping, as Linux has none of 128 TiB.
const ENDLESS: u64 = 1 << 46;

/// Five seconds of the processor's time are a hundred times what any of these needs.
fn replay(arguments: &str, trace: &SmallTrace) -> Output {
    let file = trace.write();
    let path: &Path = file.as_ref();
    let quire = env!("CARGO_BIN_EXE_quire");
    let script =
        format!("ulimit -t 5; exec '{quire}' replay --memory-limit 512M {arguments} '{}'", path.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    shell.output().expect("the command runs")
}

/// The one line that a refused trace gives.
fn refusal(trace: &SmallTrace) -> String {
    let output = replay("", trace);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn refused(trace: &SmallTrace, event: u64, cure: &str) {
    let line = refusal(trace);
    assert!(line.contains(&format!("event {event} ")) && line.contains(cure), "{line}");
}

fn replayed(trace: &SmallTrace) {
    for arguments in ["--rounds 1", "--check"] {
        let output = replay(arguments, trace);
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
}

/// A program with two mappings, the second one endless.
fn with_endless_mapping() -> SmallTrace {
    let mut trace = program();
    trace.event(10, anonymous(HEAP, 0x10000));
    trace.event(10, anonymous(1 << 30, ENDLESS));
    trace
}

#[test]
fn an_endless_fault_around_is_refused() {
    let mut trace = with_endless_mapping();
    trace.event(10, EventKind::FaultAround { start: 1 << 30, len: ENDLESS });
    refused(&trace, 4, "--work-limit");
    let mut trace = with_endless_mapping();
    trace.event(10, EventKind::FaultAround { start: 1 << 30, len: u64::MAX });
    refused(&trace, 4, "no processor translates");
}

#[test]
fn an_endless_populate_is_refused_mapped_or_not() {
    let cause = PopulateCause::Mlock;
    let mut trace = with_endless_mapping();
    trace.event(10, EventKind::Populate { start: 1 << 30, len: ENDLESS, cause });
    refused(&trace, 4, "--work-limit");
    let mut trace = program();
    trace.event(10, EventKind::Populate { start: 0, len: ENDLESS, cause });
    refused(&trace, 2, "--work-limit");
    let mut trace = program();
    trace.event(10, EventKind::Populate { start: 0, len: u64::MAX, cause });
    refused(&trace, 2, "no processor translates");
}

#[test]
fn verbs_that_bring_in_endless_memory_are_refused() {
    let mut trace = program();
    trace.event(10, call(Call::Mmap, [0, ENDLESS, 3, 0x8022, u64::MAX, 0], 1 << 30));
    refused(&trace, 2, "--work-limit");
    let verbs = [
        call(Call::Mlock, [1 << 30, ENDLESS, 0, 0, 0, 0], 0),
        call(Call::Mlockall, [1, 0, 0, 0, 0, 0], 0),
        call(Call::Madvise, [1 << 30, ENDLESS, 22, 0, 0, 0], 0),
        call(Call::Madvise, [1 << 30, ENDLESS, 23, 0, 0, 0], 0),
    ];
    for verb in verbs {
        let mut trace = with_endless_mapping();
        trace.event(10, verb);
        refused(&trace, 4, "--work-limit");
    }
}

#[test]
fn a_mapping_of_no_call_may_bring_in_endless_memory_too() {
    for flags in [0x2022, 0x8022] {
        let mut trace = program();
        let (cause, start, len, prot) = (MapCause::Vdso, 1 << 30, ENDLESS, 4);
        trace.event(10, EventKind::Map { cause, start, len, prot, flags, file: None, file_offset: 0 });
        refused(&trace, 2, "--work-limit");
    }
}

#[test]
fn growth_of_locked_memory_is_brought_in_and_refused() {
    let mut trace = program();
    trace.event(10, call(Call::Brk, [0; 6], 0x1000_0000));
    trace.event(10, call(Call::Mlockall, [2, 0, 0, 0, 0, 0], 0));
    trace.event(10, call(Call::Brk, [1 << 45, 0, 0, 0, 0, 0], 1 << 45));
    refused(&trace, 4, "--work-limit");
    let mut trace = program();
    trace.event(10, anonymous(1 << 30, 0x1000));
    trace.event(10, call(Call::Mlock, [1 << 30, 0x1000, 0, 0, 0, 0], 0));
    trace.event(10, call(Call::Mremap, [1 << 30, 0x1000, ENDLESS, 1, 0, 0], 1 << 30));
    refused(&trace, 4, "--work-limit");
    let mut trace = program();
    trace.event(10, call(Call::Mlockall, [3, 0, 0, 0, 0, 0], 0));
    // The stack of a program has no limit that this trace tells.
    trace.event(10, fault(1 << 40, Access::Write, false));
    refused(&trace, 3, "--work-limit");
}

#[test]
fn verbs_over_all_addresses_take_no_time() {
    let mut trace = with_endless_mapping();
    trace.event(10, fault(HEAP, Access::Write, false));
    for _ in 0..200 {
        trace.event(10, call(Call::Mprotect, [1 << 30, ENDLESS, 1, 0, 0, 0], 0));
        trace.event(10, call(Call::Mprotect, [1 << 30, ENDLESS, 3, 0, 0, 0], 0));
        trace.event(10, call(Call::Madvise, [1 << 30, ENDLESS, 4, 0, 0, 0], 0));
        trace.event(10, call(Call::Mincore, [0, u64::MAX, 1, 0, 0, 0], -12));
    }
    trace.event(10, call(Call::Munmap, [0x10000, (1 << 47) - 0x20000, 0, 0, 0, 0], 0));
    replayed(&trace);
}

#[test]
fn many_forks_of_much_memory_are_refused() {
    let mut trace = program();
    trace.event(10, call(Call::Mmap, [0, 256 << 20, 1, 0x8022, u64::MAX, 0], 1 << 30));
    for child in 0..2000 {
        let (child_pid, kind) = (100 + child, ForkKind::Copy);
        trace.event(10, EventKind::Fork { child_pid, child_tid: child_pid, flags: 0, kind });
        trace.exit(child_pid);
    }
    let line = refusal(&trace);
    assert!(line.contains("--work-limit") && line.contains("event "), "{line}");
}

#[test]
fn children_that_stay_are_counted_as_memory() {
    let mut trace = program();
    for page in 0..512 {
        trace.event(10, fault(0x7ffd_0000_0000 + (page % 33) * 4096, Access::Write, false));
    }
    for child in 0..60_000 {
        let (child_pid, kind) = (100 + child, ForkKind::Copy);
        trace.event(10, EventKind::Fork { child_pid, child_tid: child_pid, flags: 0, kind });
    }
    let line = refusal(&trace);
    assert!(line.contains("--memory-limit") && line.contains("event "), "{line}");
}

#[test]
fn offsets_of_files_end_where_linux_ends_them() {
    let file = Some(FileId { device: 1, inode: 2, path: PathId(0) });
    let map = |offset: u64| {
        let mut trace = program();
        let cause = MapCause::Other;
        let kind =
            EventKind::Map { cause, start: HEAP, len: 0x2000, prot: 1, flags: 2, file, file_offset: offset };
        trace.event(10, kind);
        trace.event(10, fault(HEAP, Access::Read, false));
        trace
    };
    for offset in [u64::MAX - 0xfff, 1 << 63, (1 << 63) - 0x1000] {
        refused(&map(offset), 2, "largest offset");
    }
    replayed(&map((1 << 63) - 0x3000));
    let mut trace = program();
    let args = [0, 0x1000, 1, 2, 3, u64::MAX - 0xfff];
    let call = Syscall {
        call: Call::Mmap,
        args,
        result: HEAP as i64,
        enter_ns: 0,
        duration_ns: 1,
        file,
        unordered: false,
    };
    trace.event(10, EventKind::Syscall(call));
    refused(&trace, 2, "largest offset");
}

#[test]
fn faults_are_at_addresses_that_there_are() {
    for address in [1 << 47, 0x00fe_e33b_0000_0101] {
        let mut trace = program();
        trace.event(10, fault(address, Access::Read, false));
        refused(&trace, 2, "no processor translates");
    }
}

#[test]
fn a_file_that_expands_beyond_reason_is_refused() {
    let mut trace = program();
    (0..100_000).for_each(|_| trace.event(10, call(Call::Mbind, [u64::MAX; 6], 0)));
    let line = refusal(&trace);
    assert!(line.contains("expands to hundreds of times its size"), "{line}");
}

#[test]
fn an_endless_populate_is_not_exported() {
    for (start, len) in [(1 << 30, 1 << 63), (1 << 30, ENDLESS), (u64::MAX - 4095, 1 << 20)] {
        let mut trace = program();
        trace.event(10, EventKind::Populate { start, len, cause: PopulateCause::Mlock });
        let file = trace.write();
        let path: &Path = file.as_ref();
        for arguments in ["ramulator", "champsim --pid 10"] {
            let quire = env!("CARGO_BIN_EXE_quire");
            let script =
                format!("ulimit -t 5; exec '{quire}' export --format {arguments} '{}'", path.display());
            let output = Command::new("sh").args(["-c", &script]).output().expect("the command runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && said.contains("as no recording does"), "{said}");
        }
    }
}

#[test]
fn times_may_be_any() {
    let mut trace = program();
    trace.event(10, anonymous(HEAP, 0x10000));
    trace.starts_at_the_beginning_of_time();
    for page in 0..2 {
        let (addr, access, duration_ns) = (HEAP + page * 4096, Access::Write, Some(u64::MAX));
        let (protection, kernel_mode, major) = (false, false, page == 1);
        trace.event(10, EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns });
    }
    trace.event(10, shared(1 << 40, 0x2000));
    for page in 0..2 {
        let (addr, access, duration_ns) = ((1 << 40) + page * 4096, Access::Write, Some(u64::MAX));
        let (protection, kernel_mode, major) = (false, false, false);
        trace.event(10, EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns });
    }
    trace.until_the_end_of_time();
    trace.exit(10);
    replayed(&trace);
    let file = trace.write();
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
    quire.args(["advise", "--format", "json", "--baseline", "4K"]).arg(&*file);
    let output = quire.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).output().expect("the command runs");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
}

/// A memfd that is mapped here.
fn shared(at: u64, len: u64) -> EventKind {
    let EventKind::Syscall(mmap) = call(Call::Mmap, [0, len, 3, 1, 3, 0], at as i64) else { unreachable!() };
    EventKind::Syscall(Syscall { file: Some(FileId { device: 1, inode: 2, path: PathId(2) }), ..mmap })
}

/// So many mappings of a page each, in the program and in four children.
fn with_many_mappings(count: u64) -> SmallTrace {
    let mut trace = program();
    trace.event(10, shared(1 << 40, 0x1000));
    for page in 0..count {
        let prot = 1 + 2 * (page % 2);
        let at = HEAP + page * 4096;
        trace.event(10, call(Call::Mmap, [0, 4096, prot, 0x22, u64::MAX, 0], at as i64));
    }
    for child_pid in 11..15 {
        let kind = ForkKind::Copy;
        trace.event(10, EventKind::Fork { child_pid, child_tid: child_pid, flags: 0, kind });
    }
    trace
}

#[test]
fn calls_that_search_all_mappings_are_counted_as_work() {
    // Each cut of the file searches every address space for its mappings.
    let mut trace = with_many_mappings(20_000);
    for _ in 0..60_000 {
        let EventKind::Syscall(cut) = call(Call::Fallocate, [3, 3, 0, 4096, 0, 0], 0) else { unreachable!() };
        let file = Some(FileId { device: 1, inode: 2, path: PathId(2) });
        trace.event(10, EventKind::Syscall(Syscall { file, ..cut }));
    }
    let line = refusal(&trace);
    assert!(line.contains("--work-limit"), "{line}");
}

#[test]
fn refused_calls_that_search_all_mappings_are_counted_as_work() {
    let mut trace = with_many_mappings(60_000);
    // Nothing is mapped behind the page, so that each refusal has a reason.
    let last = HEAP + 59_999 * 4096;
    let (refused, len) = ([last, 0x2000, 1, 0, 0, 0], 0x2000);
    for _ in 0..40_000 {
        trace.event(10, call(Call::Mprotect, refused, -12));
        trace.event(10, call(Call::Mremap, [last, len, len + 0x1000, 1, 0, 0], -14));
        trace.event(10, call(Call::Mlock, [last, len, 0, 0, 0, 0], -12));
    }
    let line = refusal(&trace);
    assert!(line.contains("--work-limit"), "{line}");
}
