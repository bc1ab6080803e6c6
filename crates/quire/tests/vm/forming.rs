//! Folios of 1 GiB that are cleared on demand: the piece that is touched first, the rest by whoever is idle.

use std::sync::atomic::{AtomicBool, Ordering};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::SplitError;
use quire::limits::{FORMING_FOLIOS, FRAME_SIZE};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::vm::{Access, FaultKind, FolioPolicy, Remap};

use crate::world::{MIB, Manager, R, Space, anonymous, load, run, store, with_config};

const GIB: u64 = 1 << 30;
const BASE: u64 = 64 * GIB;

/// A machine with room for one folio of 1 GiB and some more.
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

/// Lets an idle CPU do all there is; how many pieces.
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
            // Whoever touches another piece does not wait for the rest, whether it loads or stores.
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

/// Nobody takes a folio apart while it forms: who fills it holds all of it by its first frame.
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

/// The last piece may be brought by a fault, or by populating.
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

/// Changes to the mapping while pieces are missing: what is not mapped any more is not brought back, and no memory is lost.
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
            // Other memory is moved to the place of what was moved away.
            let other = BASE + 16 * GIB;
            mm.mmap(&anonymous(other, 32 * MIB)).unwrap();
            let place = VirtAddr(BASE + 230 * MIB);
            mm.mremap(VirtAddr(other), 32 * MIB, 32 * MIB, Remap::Fixed(place)).unwrap();
            let child = mm.fork().unwrap();
            assert_eq!(idle(manager), 511);
            assert_eq!(leaf_bytes(machine, mm, place.0 + 2 * MIB), None);
            // Nothing in what is gone or was moved; what was moved is touched anew.
            assert_eq!(leaf_bytes(machine, mm, BASE + 50 * MIB), None);
            assert_eq!(leaf_bytes(machine, mm, BASE + 220 * MIB), None);
            assert_eq!(leaf_bytes(machine, mm, to.0), None);
            assert_eq!(load(machine, mm, to.0), Ok(0));
            // What came late has the rights of its mapping.
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
            // The pieces without a place come back when memory is wanted.
            assert_eq!(manager.pages().deferred_splits(), 1);
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

/// Whoever touches one piece after another would wait for an idle CPU that clears the next one.
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

/// As many at a time as there is room for; the next is cleared as a whole.
#[test]
fn one_folio_too_many_comes_as_a_whole() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new((FORMING_FOLIOS as u64 + 3) * GIB) };
    with_config(config, stale(Order::GIGANTIC), |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, (FORMING_FOLIOS as u64 + 1) * GIB)).unwrap();
            let order = |at: u64| mm.fault(VirtAddr(BASE + at), Access::Write).unwrap().order;
            for at in 0..FORMING_FOLIOS as u64 {
                assert_eq!(order(at * GIB), Order::BLOCK);
            }
            assert_eq!(order(FORMING_FOLIOS as u64 * GIB), Order::GIGANTIC);
            assert_eq!(idle(manager), FORMING_FOLIOS * 511);
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
                // Through all pieces, none after its neighbour.
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
