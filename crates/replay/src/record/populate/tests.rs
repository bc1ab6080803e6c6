use super::*;
use crate::trace::Event;

fn call(call: Call, args: &[u64], result: i64) -> Syscall {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    Syscall { call, args: all, result, enter_ns: 0, duration_ns: 0, file: None, unordered: false }
}

fn ranges(call: &Syscall, layouts: &Layouts) -> Vec<(u64, u64)> {
    let range = |kind: &EventKind| match kind {
        EventKind::Populate { start, len, .. } => (*start, *len),
        other => panic!("{other:?}"),
    };
    derived(call, 1, Some(0x5000), layouts).iter().map(range).collect()
}

fn apply(layouts: &mut Layouts, call: &Syscall) {
    layouts.apply(&Event { time_ns: 0, pid: 1, tid: 1, kind: EventKind::Syscall(call.clone()) });
}

#[test]
fn calls_that_populate() {
    let none = Layouts::default();
    let map = |flags, result| ranges(&call(Call::Mmap, &[0, 0x1001, 3, flags], result), &none);
    assert_eq!(map(0x22 | MAP_POPULATE, 0x10000), [(0x10000, 0x2000)]);
    assert_eq!(map(0x22 | MAP_LOCKED, 0x10000), [(0x10000, 0x2000)]);
    assert_eq!(map(0x22 | MAP_POPULATE | MAP_NONBLOCK, 0x10000), []);
    assert_eq!(map(0x22, 0x10000), []);
    assert_eq!(map(0x22 | MAP_POPULATE, -12), []);
    assert_eq!(ranges(&call(Call::Mlock, &[0x1234, 0x10], 0), &none), [(0x1000, 0x1000)]);
    assert_eq!(ranges(&call(Call::Mlock2, &[0x1000, 0x10, MLOCK_ONFAULT], 0), &none), []);
    assert_eq!(ranges(&call(Call::Madvise, &[0x1000, 0x3000, 23], 0), &none), [(0x1000, 0x3000)]);
    assert_eq!(ranges(&call(Call::Madvise, &[0x1000, 0x3000, 4], 0), &none), []);
}

#[test]
fn locking_everything_now_and_later() {
    let mut layouts = Layouts::default();
    apply(&mut layouts, &call(Call::Mmap, &[0, 0x1000, 3, 0x22], 0x10000));
    let lock = call(Call::Mlockall, &[MCL_CURRENT | 2], 0);
    apply(&mut layouts, &lock);
    assert_eq!(ranges(&lock, &layouts), [(0x10000, 0x1000)]);
    assert_eq!(ranges(&call(Call::Mmap, &[0, 0x2000, 3, 0x22], 0x20000), &layouts), [(0x20000, 0x2000)]);
    assert_eq!(ranges(&call(Call::Mmap, &[0, 0x2000, 0, 0x22], 0x20000), &layouts), []);
    assert_eq!(ranges(&call(Call::Brk, &[0x7000], 0x7000), &layouts), [(0x5000, 0x2000)]);
}

#[test]
fn locking_later_mappings_on_fault_populates_none() {
    let mut layouts = Layouts::default();
    apply(&mut layouts, &call(Call::Mlockall, &[2 | MCL_ONFAULT], 0));
    for flags in [0x22, 0x22 | MAP_LOCKED, 0x22 | MAP_POPULATE] {
        assert_eq!(ranges(&call(Call::Mmap, &[0, 0x2000, 3, flags], 0x20000), &layouts), [], "{flags:#x}");
    }
    assert_eq!(ranges(&call(Call::Brk, &[0x7000], 0x7000), &layouts), []);
    apply(&mut layouts, &call(Call::Mlockall, &[2], 0));
    assert_eq!(ranges(&call(Call::Mmap, &[0, 0x2000, 3, 0x22], 0x20000), &layouts), [(0x20000, 0x2000)]);
}
