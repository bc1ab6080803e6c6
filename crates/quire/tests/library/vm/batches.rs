//! The exact cost of each caller of the gather in flushes, interrupts of other CPUs, and exchanges of
//! entries.

use hosted::{Counters, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, FolioPolicy, Remap};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, run, store, with_manager};

const GIB: u64 = 1 << 30;
/// Aligned to tables of leaves and to nothing above.
const BASE: u64 = 8 * GIB + 6 * MIB;

/// A machine that only counts: of its four CPUs, 0 and 2 run the address space.
fn counting(bytes: u64) -> HostedConfig {
    HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(bytes + 128 * MIB).with_cpus(4) }
}

/// Maps and touches `len` bytes with folios of this order.
fn populated(manager: &Manager<'_>, mm: &Space<'_>, len: u64, order: u8) {
    let order = Order::new(order).unwrap();
    manager.set_folio_policy(FolioPolicy::only(order).with_pmd_mapped(false));
    mm.mmap(&anonymous(BASE, len)).unwrap();
    for at in (BASE..BASE + len).step_by(order.bytes() as usize) {
        mm.fault(VirtAddr(at), Access::Write).unwrap();
    }
    assert_eq!(mm.rss().anon * 4096, len);
}

/// The calls that `work` makes, and how many entries and tables it exchanges.
fn cost(machine: &Hosted, manager: &Manager<'_>, work: impl FnOnce()) -> (Counters, u64, u64) {
    let stats = || (manager.stat(Stat::ZapEntry), manager.stat(Stat::ZapTable));
    let before = stats();
    machine.reset_counters();
    work();
    let (after, counters) = (stats(), machine.counters());
    (counters, after.0 - before.0, after.1 - before.1)
}

/// Runs `work` while CPUs 0 and 2 run the address space.
fn on_two_cpus(machine: &Hosted, mm: &Space<'_>, work: impl FnOnce()) {
    machine.run_on(CpuId(2), || mm.switch_in());
    work();
    machine.run_on(CpuId(2), || mm.switch_out());
}

/// Invariant 7: one flush for at most 64 tables, and only on CPUs that run the address space.
#[test]
fn a_gigabyte_is_unmapped_with_a_flush_for_64_tables() {
    with_manager(counting(GIB), |machine, manager| {
        run(manager, |mm| {
            populated(manager, mm, GIB, 4);
            on_two_cpus(machine, mm, || {
                let (counters, entries, tables) =
                    cost(machine, manager, || mm.munmap(VirtAddr(BASE), GIB).unwrap());
                // Nothing else is mapped, so the upper table is detached.
                assert_eq!((entries, tables), (0, 1));
                assert_eq!((counters.flushes_local, counters.flushes_remote), (1, 1));
                assert_eq!(counters.cpus_targeted, 1, "CPUs 1 and 3 run something else");
            });
        });
    });
}

#[test]
fn dont_need_detaches_whole_tables_and_leaves_those_above() {
    with_manager(counting(256 * MIB), |machine, manager| {
        run(manager, |mm| {
            populated(manager, mm, 256 * MIB, 2);
            on_two_cpus(machine, mm, || {
                let (counters, entries, tables) = cost(machine, manager, || {
                    mm.madvise(VirtAddr(BASE + MIB), 254 * MIB, Advice::DontNeed).unwrap();
                });
                // Half a table at either end.
                assert_eq!((entries, tables), (512, 126));
                assert_eq!((counters.flushes_local, counters.flushes_remote), (2, 2));
                assert_eq!(counters.cpus_targeted, 2);
            });
            assert_eq!(mm.rss().anon, 512);
            mm.fault(VirtAddr(BASE + 3 * MIB), Access::Write).unwrap();
        });
    });
}

#[test]
fn advice_protection_and_moves_flush_once() {
    with_manager(counting(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            populated(manager, mm, 64 * MIB, 0);
            on_two_cpus(machine, mm, || {
                let flushes = |work: &dyn Fn()| {
                    let (counters, entries, tables) = cost(machine, manager, work);
                    assert_eq!((entries, tables), (0, 0));
                    assert_eq!(counters.cpus_targeted, counters.flushes_remote);
                    (counters.flushes_local, counters.flushes_remote)
                };
                let (at, len) = (VirtAddr(BASE), 64 * MIB);
                assert_eq!(flushes(&|| mm.madvise(at, len, Advice::Free).unwrap()), (1, 1));
                assert_eq!(flushes(&|| mm.mprotect(at, len, R).unwrap()), (1, 1));
                assert_eq!(flushes(&|| mm.mprotect(at, len, RW).unwrap()), (0, 0));
                let to = VirtAddr(4 * GIB);
                let moved = || assert_eq!(mm.mremap(at, len, len, Remap::Fixed(to)), Ok(to));
                assert_eq!(flushes(&moved), (1, 1));
                let off = VirtAddr(6 * GIB + 4096);
                let moved = || assert_eq!(mm.mremap(to, len, len, Remap::Fixed(off)), Ok(off));
                assert_eq!(flushes(&moved), (1, 1));
                mm.munmap(off, len).unwrap();
            });
        });
    });
}

/// Large leaves that move off their alignment are split 32 with a flush.
#[test]
fn a_move_of_large_leaves_to_another_alignment_flushes_thrice() {
    with_manager(counting(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            let (at, len, to) = (VirtAddr(8 * GIB), 128 * MIB, VirtAddr(6 * GIB + 4096));
            mm.mmap(&anonymous(at.0, len)).unwrap();
            (0..64).for_each(|leaf| _ = mm.fault(at.add(leaf * 2 * MIB), Access::Write).unwrap());
            on_two_cpus(machine, mm, || {
                let split = manager.stat(Stat::ThpSplitPmd);
                let (counters, entries, tables) = cost(machine, manager, || {
                    assert_eq!(mm.mremap(at, len, len, Remap::Fixed(to)), Ok(to));
                });
                assert_eq!((entries, tables, manager.stat(Stat::ThpSplitPmd) - split), (0, 0, 64));
                assert_eq!((counters.flushes_local, counters.flushes_remote), (3, 3));
                assert_eq!(counters.cpus_targeted, 3, "CPUs 1 and 3 run something else");
            });
            assert_eq!(mm.rss().anon * 4096, len);
        });
    });
}

/// An address space that no CPU runs is changed without a flush. One that exits is freed without a flush, by
/// tables and folios, whichever CPU ran it before.
#[test]
fn exit_flushes_nothing() {
    with_manager(counting(GIB), |machine, manager| {
        for (order, locks) in [(0, 600), (4, 600), (8, 1100)] {
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            populated(manager, &mm, 512 * MIB, order);
            on_two_cpus(machine, &mm, || {});
            mm.switch_out();
            let before = manager.stat(Stat::BlockLock);
            let (counters, entries, tables) = cost(machine, manager, || mm.exit());
            assert_eq!((entries, tables), (0, 0));
            assert_eq!((counters.flushes_local, counters.flushes_remote, counters.cpus_targeted), (0, 0, 0));
            let held = manager.stat(Stat::BlockLock) - before;
            assert!(held <= locks, "order {order}: {held} holds of a block's lock for 256 tables");
        }
    });
}

#[test]
fn an_address_space_that_no_cpu_runs_is_not_flushed() {
    with_manager(counting(64 * MIB), |machine, manager| {
        let mm = manager.new_mm().unwrap();
        populated(manager, &mm, 64 * MIB, 4);
        let verbs: [&dyn Fn(); 4] = [
            &|| mm.mprotect(VirtAddr(BASE), 32 * MIB, R).unwrap(),
            &|| mm.madvise(VirtAddr(BASE), 16 * MIB, Advice::Free).unwrap(),
            &|| mm.madvise(VirtAddr(BASE), 16 * MIB, Advice::DontNeed).unwrap(),
            &|| mm.munmap(VirtAddr(BASE), 64 * MIB).unwrap(),
        ];
        for verb in verbs {
            let (counters, ..) = cost(machine, manager, verb);
            assert_eq!((counters.flushes_local, counters.flushes_remote), (0, 0));
        }
        mm.exit();
    });
}

/// Private pages that were read-only for a while are stored to without a fault, by leaves of any size; pages
/// that a child maps as well are not.
#[test]
fn what_is_writable_again_is_stored_to_without_a_fault() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new(64 * MIB) };
    for order in [0, 4, 9] {
        with_manager(config.clone(), |machine, manager| {
            run(manager, |mm| {
                let (at, len) = (VirtAddr(BASE), 8 * MIB);
                manager.set_folio_policy(FolioPolicy::only(Order::new(order).unwrap()));
                mm.mmap(&anonymous(BASE, len)).unwrap();
                let touch = |mm: &Space<'_>| {
                    machine.reset_counters();
                    (BASE..BASE + len).step_by(4096).for_each(|at| store(machine, mm, at, at).unwrap());
                    machine.counters().mmu_faults
                };
                let faults = [0, 1].map(|_| touch(mm));
                assert_eq!(faults, [(len >> 12) >> order, 0]);
                for prot in [R, RW] {
                    mm.mprotect(at, len, prot).unwrap();
                }
                assert_eq!(touch(mm), 0, "order {order}");
                let child = mm.fork().unwrap();
                for prot in [R, RW] {
                    mm.mprotect(at, len, prot).unwrap();
                }
                assert!(machine.leaves(mm.root()).iter().all(|leaf| !leaf.write), "order {order}");
                child.exit();
                for prot in [R, RW] {
                    mm.mprotect(at, len, prot).unwrap();
                }
                assert_eq!(touch(mm), 0, "order {order}, without the child");
            });
        });
    }
}
