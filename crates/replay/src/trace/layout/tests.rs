use super::*;
use crate::trace::PathId;

const FILE: FileId = FileId { device: 1, inode: 2, path: PathId(0) };

fn event(pid: u32, kind: EventKind) -> Event {
    Event { time_ns: 0, pid, tid: pid, kind }
}

fn call(pid: u32, call: Call, args: &[u64], result: u64, file: Option<FileId>) -> Event {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let call = Syscall {
        call,
        args: all,
        result: result as i64,
        enter_ns: 0,
        duration_ns: 0,
        file,
        unordered: false,
    };
    event(pid, EventKind::Syscall(call))
}

fn ranges(layouts: &Layouts, pid: u32) -> Vec<(u64, u64, u64)> {
    layouts.mappings(pid).map(|mapping| (mapping.start, mapping.end, mapping.offset)).collect()
}

#[test]
fn unmapping_the_middle_keeps_the_offsets() {
    let mut layouts = Layouts::default();
    layouts.apply(&call(1, Call::Mmap, &[0, 0x4fff, 1, 2, 3, 0x10000], 0x10_0000, Some(FILE)));
    layouts.apply(&call(1, Call::Munmap, &[0x10_1000, 0x1001], 0, None));
    assert_eq!(ranges(&layouts, 1), [(0x10_0000, 0x10_1000, 0x10000), (0x10_3000, 0x10_5000, 0x13000)]);
    assert_eq!(layouts.find(1, 0x10_2fff), None);
    assert_eq!(layouts.find(1, 0x10_3000).and_then(|mapping| mapping.file), Some(FILE));
}

#[test]
fn mremap_moves_grows_and_shrinks() {
    let mut layouts = Layouts::default();
    layouts.apply(&call(1, Call::Mmap, &[0, 0x2000, 3, 0x22], 0x10_0000, None));
    layouts.apply(&call(1, Call::Mremap, &[0x10_0000, 0x2000, 0x5000, 1], 0x20_0000, None));
    assert_eq!(ranges(&layouts, 1), [(0x20_0000, 0x20_5000, 0)]);
    layouts.apply(&call(1, Call::Mremap, &[0x20_0000, 0x5000, 0x1000, 0], 0x20_0000, None));
    assert_eq!(ranges(&layouts, 1), [(0x20_0000, 0x20_1000, 0)]);
    layouts.apply(&call(1, Call::Mremap, &[0x20_0000, 0x1000, 0x1000, 7, 0x30_0000], 0x30_0000, None));
    assert_eq!(ranges(&layouts, 1), [(0x20_0000, 0x20_1000, 0), (0x30_0000, 0x30_1000, 0)]);
}

#[test]
fn a_range_that_moves_takes_a_hole_at_its_end_along() {
    let mut layouts = Layouts::default();
    layouts.apply(&call(1, Call::Mmap, &[0x10_0000, 0x4000, 3, 0x32], 0x10_0000, None));
    let whole = [0x10_1000, 0x5000, 0x5000, 3, 0x20_0000];
    layouts.apply(&call(1, Call::Mremap, &whole, 0x20_0000, None));
    assert_eq!(ranges(&layouts, 1), [(0x10_0000, 0x10_1000, 0), (0x20_0000, 0x20_3000, 0)]);
}

#[test]
fn the_break_grows_and_shrinks_by_pages() {
    let mut layouts = Layouts::default();
    layouts.apply(&call(1, Call::Brk, &[0], 0x40_0800, None));
    assert_eq!(ranges(&layouts, 1), []);
    layouts.apply(&call(1, Call::Brk, &[0x42_0801], 0x42_0801, None));
    assert_eq!(ranges(&layouts, 1), [(0x40_1000, 0x42_1000, 0)]);
    layouts.apply(&call(1, Call::Brk, &[0x41_0000], 0x41_0000, None));
    assert_eq!(ranges(&layouts, 1), [(0x40_1000, 0x41_0000, 0)]);
    assert_eq!(layouts.program_break(1), Some(0x41_0000));
}

#[test]
fn a_forked_child_has_its_own_and_a_vforked_one_its_parents() {
    let fork =
        |child: u32, kind| event(1, EventKind::Fork { child_pid: child, child_tid: child, flags: 0, kind });
    let mut layouts = Layouts::default();
    layouts.apply(&call(1, Call::Mmap, &[0, 0x1000, 3, 0x22], 0x10_0000, None));
    layouts.apply(&fork(2, ForkKind::Copy));
    layouts.apply(&fork(3, ForkKind::SharedMemory));
    assert!(layouts.shares_memory(3) && layouts.shares_memory(1) && !layouts.shares_memory(2));
    layouts.apply(&call(3, Call::Mmap, &[0, 0x1000, 3, 0x22], 0x20_0000, None));
    assert!(layouts.find(1, 0x20_0000).is_some());
    assert!(layouts.find(2, 0x20_0000).is_none());
    layouts.apply(&event(3, EventKind::Exec { name: PathId(0) }));
    assert!(layouts.find(3, 0x20_0000).is_none());
    assert!(layouts.find(1, 0x20_0000).is_some());
    layouts.apply(&event(
        1,
        EventKind::ProcessExit { minor_faults: None, major_faults: None, recorded_faults: 0 },
    ));
    assert!(layouts.find(1, 0x10_0000).is_none());
    assert!(layouts.find(2, 0x10_0000).is_some());
}

#[test]
fn huge_mappings_are_rounded_to_their_size() {
    let Event { kind: EventKind::Syscall(call), .. } =
        call(1, Call::Mmap, &[0, 5, 3, 0x4_0022 | 30 << 26], 0, None)
    else {
        unreachable!("it is a call")
    };
    assert_eq!(mmap_length(&call), 1 << 30);
}

#[test]
fn a_detached_segment_goes_with_all_its_pieces() {
    const OTHER: FileId = FileId { inode: 3, ..FILE };
    let attach = |start, file| {
        let (cause, len, prot, flags, file_offset) = (crate::trace::MapCause::Other, 0x4000, 3, 1, 0);
        event(1, EventKind::Map { cause, start, len, prot, flags, file: Some(file), file_offset })
    };
    let mut layouts = Layouts::default();
    for (start, file) in [(0x10_0000, FILE), (0x10_4000, OTHER), (0x20_0000, FILE)] {
        layouts.apply(&attach(start, file));
    }
    layouts.apply(&call(1, Call::Munmap, &[0x10_0000, 0x1000], 0, None));
    layouts.apply(&call(1, Call::Mprotect, &[0x10_2000, 0x1000, 1], 0, None));
    layouts.apply(&call(1, Call::Shmdt, &[0x10_0000], 0, None));
    assert_eq!(ranges(&layouts, 1), [(0x10_4000, 0x10_8000, 0), (0x20_0000, 0x20_4000, 0)]);
}
