//! Anonymous memory in folios of 1 GiB: faulted in by one leaf, split in every way, counted exactly.

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Frame, Order, VirtAddr};
use quire::limits::FRAME_SIZE;
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::vm::{Access, FaultKind, FolioPolicy, Remap};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, run, store, with_config};
use testkit::order;

const GIB: u64 = 1 << 30;
const BASE: u64 = 64 * GIB;

/// A machine with memory for one folio of 1 GiB and some more.
fn with_gigantic(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    // Verifying each folio that is known to be zero would take longer than all else.
    let zeroes = Zeroes { verify: false, ..Zeroes::default() };
    let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
    let folios = FolioPolicy::only(Order::GIGANTIC).with_on_demand(false);
    let config = Config { allocator, folios, ..Config::default() };
    with_config(HostedConfig::new(2 * GIB + 256 * MIB), config, test);
}

/// The size of the leaf at an address, and its frame.
fn leaf(machine: &Hosted, mm: &Space<'_>, addr: u64) -> (u64, Frame) {
    let leaf = machine.probe(mm.root(), VirtAddr(addr)).expect("mapped");
    (leaf.frames * FRAME_SIZE, leaf.frame.add((addr - leaf.addr.0) / FRAME_SIZE))
}

#[test]
fn one_fault_brings_a_gigabyte_which_is_taken_apart_exactly() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * GIB)).unwrap();
            let outcome = mm.fault(VirtAddr(BASE + 700 * MIB), Access::Write).unwrap();
            assert_eq!((outcome.order, outcome.kind), (Order::GIGANTIC, FaultKind::Anon));
            assert_eq!(mm.rss().anon, GIB / FRAME_SIZE);
            for at in [0, 700 * MIB, GIB - 8] {
                assert_eq!(load(machine, mm, BASE + at), Ok(0));
                assert_eq!(leaf(machine, mm, BASE + at).0, GIB);
            }
            store(machine, mm, BASE + 5 * MIB, 5).unwrap();
            store(machine, mm, BASE + 900 * MIB, 9).unwrap();
            // A child shares it, and copies one page when it stores.
            let child = mm.fork().unwrap();
            let frame = leaf(machine, mm, BASE).1;
            assert_eq!(manager.pages().counts().mapcount(frame.add(77)), 2);
            mm.switch_out();
            child.switch_in();
            store(machine, &child, BASE + 5 * MIB, 6).unwrap();
            assert_eq!(load(machine, &child, BASE + 900 * MIB), Ok(9));
            child.validate().unwrap();
            assert_eq!(leaf(machine, &child, BASE + 5 * MIB).0, FRAME_SIZE);
            assert_eq!(leaf(machine, &child, BASE + 6 * MIB).0, 2 * MIB);
            assert_eq!(manager.anon_huge(), GIB / FRAME_SIZE, "each frame counts once");
            child.switch_out();
            mm.switch_in();
            assert_eq!(load(machine, mm, BASE + 5 * MIB), Ok(5));
            let mapped = |at: u64| {
                let mut found = Vec::new();
                manager.mappings(frame.add(at / FRAME_SIZE), |root, addr| {
                    found.push((root == child.root(), addr.0 - BASE));
                });
                found
            };
            assert_eq!(mapped(5 * MIB), [(false, 5 * MIB)]);
            assert_eq!(mapped(900 * MIB), [(false, 900 * MIB), (true, 900 * MIB)]);
            child.exit();
            // A page without another mapping is stored to without a copy.
            let before = manager.meminfo().frames.used;
            store(machine, mm, BASE + 6 * MIB, 7).unwrap();
            assert_eq!(leaf(machine, mm, BASE).0, GIB);
            assert_eq!(manager.meminfo().frames.used, before);
            // Parts are unmapped; the rest keeps its contents, moves, and becomes read-only.
            mm.munmap(VirtAddr(BASE), 5 * MIB).unwrap();
            assert_eq!(mm.rss().anon, (GIB - 5 * MIB) / FRAME_SIZE);
            assert_eq!(load(machine, mm, BASE + 5 * MIB), Ok(5));
            mm.mprotect(VirtAddr(BASE + 900 * MIB), MIB, R).unwrap();
            assert!(store(machine, mm, BASE + 900 * MIB, 1).is_err());
            mm.mprotect(VirtAddr(BASE + 900 * MIB), MIB, RW).unwrap();
            store(machine, mm, BASE + 900 * MIB, 1).unwrap();
            let to = VirtAddr(BASE + 8 * GIB);
            mm.mremap(VirtAddr(BASE + 6 * MIB), 16 * MIB, 16 * MIB, Remap::Fixed(to)).unwrap();
            assert_eq!(load(machine, mm, to.0), Ok(7));
            mm.validate().unwrap();
            manager.validate().unwrap();
        });
    });
}

/// Split to blocks and further while one leaf maps it.
#[test]
fn a_gigantic_folio_is_split_in_use() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE + 300 * MIB, 3).unwrap();
            let frame = leaf(machine, mm, BASE).1;
            assert_eq!(manager.split_folio(frame, Order::BLOCK), Ok(0));
            let part = leaf(machine, mm, BASE + 300 * MIB);
            assert_eq!(part, (2 * MIB, frame.add(300 * MIB / FRAME_SIZE)));
            let mut found = Vec::new();
            manager.mappings(part.1, |_, addr| found.push(addr.0));
            assert_eq!(found, [BASE + 300 * MIB]);
            mm.validate().unwrap();
            assert_eq!(manager.split_folio(part.1, order(0)), Ok(0));
            assert_eq!(leaf(machine, mm, BASE + 300 * MIB).0, FRAME_SIZE);
            assert_eq!(load(machine, mm, BASE + 300 * MIB), Ok(3));
            // Separate blocks are free as soon as they are unmapped.
            let used = manager.meminfo().frames.used;
            mm.munmap(VirtAddr(BASE), 100 * MIB).unwrap();
            assert!(manager.meminfo().frames.used + 100 * MIB / FRAME_SIZE <= used);
            mm.validate().unwrap();
        });
    });
}

/// A part of a folio that others still map, once unmapped, is freed when memory is short.
#[test]
fn a_gigantic_folio_of_which_a_part_is_gone_waits_to_be_split() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE + 300 * MIB, 3).unwrap();
            let child = mm.fork().unwrap();
            let (pages, used) = (manager.pages(), || manager.meminfo().frames.used);
            // As long as an address space maps all of it, no part is free.
            mm.munmap(VirtAddr(BASE + 512 * MIB), 512 * MIB).unwrap();
            assert_eq!((pages.counts().deferred_splits(), pages.split_deferred(1)), (0, 0));
            child.munmap(VirtAddr(BASE + 513 * MIB), 511 * MIB).unwrap();
            assert_eq!(pages.counts().deferred_splits(), 1);
            let before = used();
            // 255 blocks, and half of one.
            let freed = pages.split_deferred(u64::MAX);
            assert_eq!(freed, 510 * MIB / FRAME_SIZE + 256);
            // The frame of the half block's counts is free too.
            assert_eq!(before - used(), freed + 1);
            assert_eq!(pages.counts().deferred_splits(), 0);
            assert_eq!(load(machine, mm, BASE + 300 * MIB), Ok(3));
            child.validate().unwrap();
            child.exit();
            manager.validate().unwrap();
        });
    });
}

/// Without a free and aligned gigabyte, smaller folios are used; every failure changes nothing.
#[test]
fn what_does_not_fit_falls_back() {
    with_gigantic(|machine, manager| {
        manager.set_folio_policy(
            FolioPolicy::only(Order::GIGANTIC)
                .with(Order::BLOCK, quire::vm::OrderPolicy::Always)
                .with_on_demand(false),
        );
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE + 2 * MIB, GIB)).unwrap();
            store(machine, mm, BASE + GIB - 2 * MIB, 1).unwrap();
            assert_eq!(leaf(machine, mm, BASE + GIB - 2 * MIB).0, 2 * MIB);
            mm.mmap(&anonymous(BASE + 4 * GIB, 3 * GIB)).unwrap();
            let order_at = |at: u64| mm.fault(VirtAddr(BASE + 4 * GIB + at), Access::Write).unwrap().order;
            // Each allocation of the fault fails in turn, until none does.
            let mut orders = Vec::new();
            for index in 0.. {
                machine.set_failures(FailurePlan::Nth(index));
                let outcome = mm.fault(VirtAddr(BASE + 4 * GIB), Access::Write);
                machine.set_failures(FailurePlan::Off);
                manager.validate().unwrap();
                orders.push(outcome.map(|outcome| outcome.order));
                if orders.last() == Some(&Ok(Order::GIGANTIC)) {
                    break;
                }
                mm.munmap(VirtAddr(BASE + 4 * GIB), GIB).unwrap();
                mm.mmap(&anonymous(BASE + 4 * GIB, GIB)).unwrap();
            }
            assert_eq!(orders.first(), Some(&Ok(Order::BLOCK)));
            // No gigabyte in a row is free any more.
            assert_eq!(order_at(GIB), Order::BLOCK);
            mm.validate().unwrap();
        });
    });
}
