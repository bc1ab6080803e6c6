//! Memory without any access: hardware finds no leaf, so the kernel's accesses fault as well, while the library
//! keeps the frames, their counts and their contents.

use hosted::{FaultCause, Hosted, HostedConfig};
use quire::addr::{Order, PhysAddr, VirtAddr};
use quire::arch::Protection;
use quire::error::FaultError;
use quire::manager::Config;
use quire::vm::{Access, Advice, FolioPolicy};

use crate::vm::world::{FORKS, MIB, Manager, R, RW, Space, anonymous, load, run, store, with_config};

const GIB: u64 = 1 << 30;
const BASE: u64 = 64 * GIB;
const NONE: Protection = Protection::NONE;

/// Runs `test` with leaves of 4 KiB, 2 MiB and 1 GiB, and each way to fork. It gets the leaf's size.
fn with_each_size(test: impl Fn(&Hosted, &Manager<'_>, &Space<'_>, u64)) {
    for (order, memory) in [(0, 64 * MIB), (9, 64 * MIB), (18, 2 * GIB + 256 * MIB)] {
        for fork in FORKS {
            let folios = FolioPolicy::only(Order::new(order).unwrap()).with_on_demand(false);
            let config = Config { folios, fork, ..Config::default() };
            with_config(HostedConfig::new(memory), config, |machine, manager| {
                run(manager, |mm| {
                    let bytes = 4096 << order;
                    mm.mmap(&anonymous(BASE, bytes.max(4 * MIB))).unwrap();
                    store(machine, mm, BASE + 8, 7).unwrap();
                    assert_eq!(machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frames, 1 << order);
                    test(machine, manager, mm, bytes);
                    mm.validate().unwrap();
                });
            });
        }
    }
}

/// Whether hardware finds nothing at an address.
fn faults(machine: &Hosted, addr: u64) -> bool {
    let fault = machine.read(VirtAddr(addr), &mut [0]).expect_err("a read without any right");
    fault.cause == FaultCause::NotPresent
}

#[test]
fn hardware_finds_no_leaf_and_the_library_keeps_it() {
    with_each_size(|machine, manager, mm, bytes| {
        let before = (mm.rss(), machine.probe(mm.root(), VirtAddr(BASE)).unwrap());
        mm.mprotect(VirtAddr(BASE), bytes, NONE).unwrap();
        assert!(faults(machine, BASE) && faults(machine, BASE + bytes - 4096));
        assert_eq!(load(machine, mm, BASE), Err(FaultError::Protection));
        assert_eq!(store(machine, mm, BASE, 1), Err(FaultError::Protection));
        assert_eq!(mm.translate(VirtAddr(BASE), Access::Read), None);
        let kept = machine.probe(mm.root(), VirtAddr(BASE)).unwrap();
        assert!(!kept.present && !kept.user && !kept.write && !kept.exec);
        assert_eq!((mm.rss(), kept.frame, kept.frames), (before.0, before.1.frame, before.1.frames));
        assert_eq!(manager.pages().counts().mapcount(kept.frame), 1);
        let mut found = Vec::new();
        manager.mappings(kept.frame, |_, addr| found.push(addr.0));
        assert_eq!(found, [BASE]);
        mm.mprotect(VirtAddr(BASE), bytes, RW).unwrap();
        assert_eq!(load(machine, mm, BASE + 8), Ok(7));
        assert_eq!(machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame, before.1.frame);
    });
}

/// One page in a large leaf loses all rights: the leaf splits, and the others keep theirs.
#[test]
fn a_part_of_a_leaf_can_be_inaccessible() {
    with_each_size(|machine, _, mm, bytes| {
        let middle = BASE + bytes / 2;
        mm.mprotect(VirtAddr(middle.next_multiple_of(4096)), 4096, NONE).unwrap();
        assert_eq!(load(machine, mm, BASE + 8), Ok(7));
        let middle = middle.next_multiple_of(4096);
        assert!(faults(machine, middle));
        mm.mprotect(VirtAddr(middle), 4096, R).unwrap();
        assert_eq!(load(machine, mm, middle), Ok(0));
        // All of it inaccessible, then a part of it in use again.
        mm.mprotect(VirtAddr(BASE), bytes, NONE).unwrap();
        mm.mprotect(VirtAddr(BASE), 4096, RW).unwrap();
        assert_eq!(load(machine, mm, BASE + 8), Ok(7));
        assert!(bytes == 4096 || faults(machine, BASE + 4096));
    });
}

#[test]
fn a_child_inherits_inaccessible_memory() {
    with_each_size(|machine, manager, mm, bytes| {
        mm.mprotect(VirtAddr(BASE), bytes, NONE).unwrap();
        let child = mm.fork().unwrap();
        let frame = machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame;
        let mut found = 0;
        manager.mappings(frame, |_, _| found += 1);
        assert_eq!(found, 2);
        mm.mprotect(VirtAddr(BASE), bytes, RW).unwrap();
        store(machine, mm, BASE + 8, 8).unwrap();
        mm.switch_to(&child);
        assert!(faults(machine, BASE));
        child.mprotect(VirtAddr(BASE), bytes, RW).unwrap();
        assert_eq!(load(machine, &child, BASE + 8), Ok(7));
        child.validate().unwrap();
        child.switch_to(mm);
        child.exit();
        assert_eq!(load(machine, mm, BASE + 8), Ok(8));
    });
}

#[test]
fn inaccessible_memory_moves_and_goes() {
    with_each_size(|machine, manager, mm, bytes| {
        mm.mprotect(VirtAddr(BASE), bytes, NONE).unwrap();
        let leaf = machine.probe(mm.root(), VirtAddr(BASE)).unwrap();
        if bytes < GIB {
            manager.migrate(leaf.frame).unwrap();
            let moved = machine.probe(mm.root(), VirtAddr(BASE)).unwrap();
            assert!(!moved.present && moved.frame != leaf.frame && moved.frames == leaf.frames);
            assert_eq!(machine.peek(PhysAddr(moved.frame.addr().0 + 8)), 7);
        }
        mm.madvise(VirtAddr(BASE), bytes, Advice::DontNeed).unwrap();
        assert_eq!((mm.rss().anon, machine.probe(mm.root(), VirtAddr(BASE))), (0, None));
        mm.mprotect(VirtAddr(BASE), bytes, RW).unwrap();
        assert_eq!(load(machine, mm, BASE + 8), Ok(0));
    });
}
