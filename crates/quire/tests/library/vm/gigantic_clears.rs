//! Folios of 1 GiB that are cleared on demand: first the piece that is touched, the rest by idle CPUs.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::SplitError;
use quire::limits::{FRAME_SIZE, GIGANTIC_CLEARS};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::vm::{Access, Advice, FaultKind, FolioPolicy, Remap};

use crate::vm::world::{MIB, Manager, R, Space, anonymous, load, run, store, with_config};
use testkit::{PATIENCE, held_up};

const GIB: u64 = 1 << 30;
const BASE: u64 = 64 * GIB;

/// A machine with memory for one folio of 1 GiB and some more.
fn with_gigantic(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_config(HostedConfig::new(2 * GIB + 256 * MIB).with_cpus(2), stale(Order::GIGANTIC), test);
}

/// Folios of this order, of memory that is not known to be zero.
fn stale(order: Order) -> Config {
    let zeroes = Zeroes { remember: false, ..Zeroes::default() };
    let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
    Config { allocator, folios: FolioPolicy::only(order), ..Config::default() }
}

fn leaf_bytes(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<u64> {
    machine.probe(mm.root(), VirtAddr(addr)).map(|leaf| leaf.frames * FRAME_SIZE)
}

/// An idle CPU clears all it can. Returns how many pieces.
fn idle(manager: &Manager<'_>) -> usize {
    std::iter::from_fn(|| manager.clear_ahead().then_some(())).count()
}

#[test]
fn the_touched_piece_comes_first_and_one_leaf_in_the_end() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            let outcome = mm.fault(VirtAddr(BASE + 701 * MIB), Access::Write).unwrap();
            assert_eq!((outcome.order, outcome.kind), (Order::BLOCK, FaultKind::Anon));
            assert_eq!(mm.rss().anon, 2 * MIB / FRAME_SIZE);
            store(machine, mm, BASE + 701 * MIB, 7).unwrap();
            // A load or store of another piece does not wait for the rest.
            assert_eq!(load(machine, mm, BASE + 5 * MIB), Ok(0));
            store(machine, mm, BASE, 1).unwrap();
            assert_eq!(leaf_bytes(machine, mm, BASE + 5 * MIB), Some(2 * MIB));
            assert_eq!(leaf_bytes(machine, mm, BASE + 7 * MIB), None);
            mm.validate().unwrap();
            assert_eq!(idle(manager), 512 - 3);
            assert_eq!(mm.rss().anon, GIB / FRAME_SIZE);
            for (at, word) in [(0, 1), (5 * MIB, 0), (701 * MIB, 7), (GIB - 8, 0)] {
                assert_eq!(leaf_bytes(machine, mm, BASE + at), Some(GIB));
                assert_eq!(load(machine, mm, BASE + at), Ok(word));
            }
            manager.validate().unwrap();
        });
    });
}

/// A folio is not split while it is cleared: the claim on it holds all of it through its first frame.
#[test]
fn a_folio_that_forms_is_not_split() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE, 7).unwrap();
            let head = machine.probe(mm.root(), VirtAddr(BASE)).expect("a piece is there").frame;
            for order in [Order::BLOCK, Order::FRAME] {
                assert_eq!(manager.split_folio(head, order), Err(SplitError::InUse));
            }
            idle(manager);
            assert_eq!(load(machine, mm, BASE), Ok(7));
            assert_eq!(manager.split_folio(head, Order::BLOCK), Ok(0));
        });
    });
}

/// A fault or populating may clear the last piece.
#[test]
fn a_populated_gigabyte_ends_as_one_leaf() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
            assert_eq!(leaf_bytes(machine, mm, BASE + 77 * MIB), Some(GIB));
            assert!(!manager.clear_ahead());
        });
    });
}

/// The mapping changes while pieces are missing: unmapped ranges are not mapped again, and no memory is lost.
#[test]
fn mappings_may_change_while_a_folio_forms() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE + 300 * MIB, 3).unwrap();
            let before = manager.meminfo().frames.used;
            mm.munmap(VirtAddr(BASE), 100 * MIB).unwrap();
            mm.mprotect(VirtAddr(BASE + 900 * MIB), 50 * MIB, R).unwrap();
            let to = VirtAddr(BASE + 8 * GIB);
            mm.mremap(VirtAddr(BASE + 200 * MIB), 64 * MIB, 64 * MIB, Remap::Fixed(to)).unwrap();
            // Other memory is moved into the place of the moved range.
            let other = BASE + 16 * GIB;
            mm.mmap(&anonymous(other, 32 * MIB)).unwrap();
            let place = VirtAddr(BASE + 230 * MIB);
            mm.mremap(VirtAddr(other), 32 * MIB, 32 * MIB, Remap::Fixed(place)).unwrap();
            let child = mm.fork().unwrap();
            // Without the pieces of unmapped and moved ranges.
            assert_eq!(idle(manager), 511 - 50 - 32);
            assert_eq!(leaf_bytes(machine, mm, place.0 + 2 * MIB), None);
            // Unmapped and moved ranges stay empty; the moved range is touched anew.
            assert_eq!(leaf_bytes(machine, mm, BASE + 50 * MIB), None);
            assert_eq!(leaf_bytes(machine, mm, BASE + 220 * MIB), None);
            assert_eq!(leaf_bytes(machine, mm, to.0), None);
            assert_eq!(load(machine, mm, to.0), Ok(0));
            // Pieces that are mapped late have the rights of their mapping.
            assert!(store(machine, mm, BASE + 910 * MIB, 1).is_err());
            assert_eq!(load(machine, mm, BASE + 910 * MIB), Ok(0));
            store(machine, mm, BASE + 301 * MIB, 4).unwrap();
            mm.switch_out();
            child.switch_in();
            assert_eq!(load(machine, &child, BASE + 300 * MIB), Ok(3));
            assert_eq!(load(machine, &child, BASE + 301 * MIB), Ok(0));
            child.validate().unwrap();
            child.switch_out();
            child.exit();
            mm.switch_in();
            mm.validate().unwrap();
            manager.validate().unwrap();
            // The unmapped pieces are freed when memory is short.
            assert_eq!(manager.pages().counts().deferred_splits(), 1);
            assert!(manager.pages().split_deferred(u64::MAX) >= 164 * MIB / FRAME_SIZE);
            assert!(manager.meminfo().frames.used < before);
        });
    });
}

#[test]
fn an_address_space_may_end_while_a_folio_forms() {
    with_gigantic(|machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, GIB)).unwrap();
        mm.switch_in();
        store(machine, &mm, BASE, 1).unwrap();
        assert!(manager.clear_ahead());
        mm.switch_out();
        mm.exit();
        assert!(!manager.clear_ahead());
    });
}

/// A program that touches one piece after another would wait for the idle CPU that clears the next one.
#[test]
fn idle_cpus_stay_away_from_what_is_touched() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            let is_there = |piece: u64| leaf_bytes(machine, mm, BASE + piece * 2 * MIB).is_some();
            for (touched, ahead) in [(0, 256), (1, 257), (70, 320), (400, 128), (511, 192)] {
                store(machine, mm, BASE + touched * 2 * MIB, 1).unwrap();
                assert!(!is_there(ahead));
                assert!(manager.clear_ahead());
                assert!(is_there(ahead), "{touched}");
            }
            assert_eq!(idle(manager), 512 - 10);
        });
    });
}

/// As many folios at a time as there are entries; the next is cleared as a whole.
#[test]
fn one_folio_too_many_comes_as_a_whole() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new((GIGANTIC_CLEARS as u64 + 3) * GIB) };
    with_config(config, stale(Order::GIGANTIC), |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, (GIGANTIC_CLEARS as u64 + 1) * GIB)).unwrap();
            let order = |at: u64| mm.fault(VirtAddr(BASE + at), Access::Write).unwrap().order;
            for at in 0..GIGANTIC_CLEARS as u64 {
                assert_eq!(order(at * GIB), Order::BLOCK);
            }
            assert_eq!(order(GIGANTIC_CLEARS as u64 * GIB), Order::GIGANTIC);
            assert_eq!(idle(manager), GIGANTIC_CLEARS * 511);
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
            mm.validate().unwrap();
        });
    });
}

/// One CPU stores all over the folio while another clears ahead.
#[test]
fn idle_cpus_clear_while_others_store() {
    with_gigantic(|machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, GIB)).unwrap();
        let (mm, done) = (&mm, &AtomicBool::new(false));
        machine.spawn_cpus(2, |cpu| {
            if cpu != CpuId(0) {
                while !done.load(Ordering::Acquire) {
                    if !manager.clear_ahead() {
                        std::thread::yield_now();
                    }
                }
                return;
            }
            mm.switch_in();
            for step in 0..600 {
                // Visits all pieces, none after its neighbour.
                let at = step * 197 % 512 * 2 * MIB + step * 8;
                store(machine, mm, BASE + at, step + 1).unwrap();
            }
            for step in 0..600 {
                let at = step * 197 % 512 * 2 * MIB + step * 8;
                assert_eq!(load(machine, mm, BASE + at), Ok(step + 1));
            }
            done.store(true, Ordering::Release);
            mm.switch_out();
        });
        while manager.clear_ahead() {}
        assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
        mm.validate().unwrap();
    });
}

/// Two CPUs that touch fresh memory at once, before any piece is mapped, share one folio.
#[test]
fn first_touches_at_once_begin_one_folio() {
    let config = HostedConfig::new(3 * GIB).with_cpus(2);
    with_config(config, stale(Order::GIGANTIC), |machine, manager| {
        for _ in 0..8 {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            let (mm, both) = (&mm, &Barrier::new(2));
            machine.spawn_cpus(2, |cpu| {
                mm.switch_in();
                both.wait();
                store(machine, mm, BASE + cpu.0 as u64 * 512 * MIB, 7).unwrap();
                mm.switch_out();
            });
            assert_eq!(idle(manager), 510, "pieces of one folio");
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
            mm.validate().unwrap();
        }
    });
}

/// While the first piece is cleared nothing is mapped: another CPU that faults at any moment still finds the
/// folio.
#[test]
fn a_folio_is_found_before_anything_of_it_is_mapped() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new(3 * GIB).with_cpus(2) };
    with_config(config, stale(Order::GIGANTIC), |machine, manager| {
        let mut nth = 0;
        loop {
            let mm = &manager.new_mm().unwrap();
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            let touch = |at: u64| mm.fault(VirtAddr(BASE + at), Access::Write).map(|outcome| outcome.order);
            let plan = InterruptPlan::Nth(nth);
            let held = held_up(machine, plan, PATIENCE, || touch(0), || touch(600 * MIB));
            assert_eq!((held.first, held.second), (Ok(Order::BLOCK), Ok(Order::BLOCK)), "{nth}");
            assert_eq!(idle(manager), 510, "{nth}");
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB), "{nth}");
            if held.calls <= nth {
                break;
            }
            nth += 1;
        }
        assert!(nth > 3, "{nth}");
    });
}

/// The missing pieces of a folio are found where not even a table is left. There is no memory for another
/// folio.
#[test]
fn a_folio_is_found_without_tables() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE + 8 * MIB, 1).unwrap();
            mm.madvise(VirtAddr(BASE), GIB - FRAME_SIZE, Advice::DontNeed).unwrap();
            assert_eq!(mm.rss().anon, 0);
            let outcome = mm.fault(VirtAddr(BASE + GIB - 1), Access::Write).unwrap();
            assert_eq!(outcome.order, Order::BLOCK);
            assert!(!manager.clear_ahead(), "the others are not wanted");
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Write).unwrap().order, Order::FRAME);
        });
    });
}

/// A child keeps the pieces that were present at its fork; the rest is free when the parent has exited.
#[test]
fn what_a_child_does_not_map_comes_back() {
    with_gigantic(|machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, GIB)).unwrap();
        mm.switch_in();
        store(machine, &mm, BASE, 1).unwrap();
        mm.switch_out();
        let child = mm.fork().unwrap();
        mm.exit();
        assert_eq!(manager.pages().counts().deferred_splits(), 1);
        assert_eq!(manager.pages().split_deferred(u64::MAX), 511 * 512);
        child.switch_in();
        assert_eq!(load(machine, &child, BASE), Ok(1));
        child.switch_out();
        child.validate().unwrap();
        child.exit();
    });
}

/// As many leaves as the folio has pieces, some of them small, do not mean that all of it is mapped.
#[test]
fn pieces_without_a_place_come_back_beside_small_leaves() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            mm.munmap(VirtAddr(BASE + FRAME_SIZE), FRAME_SIZE).unwrap();
            mm.munmap(VirtAddr(BASE + 512 * MIB), 2 * MIB).unwrap();
            assert_eq!(idle(manager), 510);
            assert_eq!(manager.pages().counts().deferred_splits(), 1);
            assert!(manager.pages().split_deferred(u64::MAX) >= 512);
        });
    });
}

/// A piece that the program drops meanwhile is not cleared for it, and not mapped again unasked.
#[test]
fn memory_that_is_given_up_does_not_come_back() {
    for unmapped in [false, true] {
        with_gigantic(|machine, manager| {
            run(manager, |mm| {
                let free = manager.meminfo().frames.free;
                mm.mmap(&anonymous(BASE, GIB)).unwrap();
                store(machine, mm, BASE + 8 * MIB, 1).unwrap();
                // All but the middle of it, whose piece is only cut.
                let give_up = |at: u64, len: u64| match unmapped {
                    true => mm.munmap(VirtAddr(BASE + at), len).unwrap(),
                    false => mm.madvise(VirtAddr(BASE + at), len, Advice::DontNeed).unwrap(),
                };
                give_up(0, 501 * MIB);
                assert_eq!(mm.rss().anon, 0);
                give_up(503 * MIB, GIB - 503 * MIB);
                assert_eq!(idle(manager), 2, "the pieces around what is left");
                assert!(mm.rss().anon <= 1024);
                give_up(0, GIB);
                assert_eq!(mm.rss().anon, 0);
                manager.pages().lists().drain_all();
                assert!(manager.meminfo().frames.free + 16 >= free);
                if !unmapped {
                    store(machine, mm, BASE + 8 * MIB, 2).unwrap();
                    assert_eq!(load(machine, mm, BASE + 9 * MIB), Ok(0));
                }
                manager.validate().unwrap();
            });
        });
    }
}

/// Pieces that were never touched are freed when memory is short.
#[test]
fn untouched_pieces_are_freed_when_memory_is_short() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true));
            let other = BASE + 8 * GIB;
            mm.mmap(&anonymous(other, 2 * GIB)).unwrap();
            mm.madvise(VirtAddr(other), 2 * GIB, Advice::PopulateWrite).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(1));
            assert!(!manager.clear_ahead());
            mm.validate().unwrap();
        });
    });
}

/// A piece whose mapping was cut cannot be mapped as a whole: a touch of the rest maps a page instead.
#[test]
fn a_fault_in_a_piece_that_was_cut_brings_a_page() {
    with_gigantic(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            mm.munmap(VirtAddr(BASE + 2 * MIB), FRAME_SIZE).unwrap();
            let outcome = mm.fault(VirtAddr(BASE + 3 * MIB), Access::Write).unwrap();
            assert_eq!((outcome.order, outcome.kind), (Order::FRAME, FaultKind::Anon));
            assert_eq!(leaf_bytes(machine, mm, BASE + 3 * MIB), Some(FRAME_SIZE));
            assert_eq!(mm.rss().anon, 512 + 1);
            assert_eq!(load(machine, mm, BASE + 3 * MIB), Ok(0));
        });
    });
}
