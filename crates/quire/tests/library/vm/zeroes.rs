//! Memory that was populated and never stored to is freed as zeroes, and no other.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, Gfp, Zeroes};
use quire::tlb::ZapStrategy;
use quire::vm::{Advice, FolioPolicy, ForkStrategy};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, store, with_config};

const BASE: u64 = 64 << 30;

/// Frames that are free and known to be zero.
fn zeroed(manager: &Manager<'_>) -> u64 {
    manager.pages().lists().drain_all();
    manager.pages().zone_info().map(|zone| zone.zeroed).sum()
}

/// What is done to four populated folios, and how many of them are freed as zeroes.
type Case = (u64, &'static str, fn(&Hosted, &Space<'_>, u64));

fn at(bytes: u64, folio: u64) -> u64 {
    BASE + folio * bytes + bytes / 2 + 8192
}

const CASES: [Case; 9] = [
    (4, "nothing", |_, _, _| {}),
    (4, "loads", |machine, mm, bytes| {
        (0..4).for_each(|folio| assert_eq!(load(machine, mm, at(bytes, folio)), Ok(0)))
    }),
    (3, "a store", |machine, mm, bytes| store(machine, mm, at(bytes, 1), 7).unwrap()),
    (3, "a store that is taken back", |machine, mm, bytes| {
        store(machine, mm, at(bytes, 2), 7).unwrap();
        store(machine, mm, at(bytes, 2), 0).unwrap();
    }),
    (3, "a store, and then free for the taking", |machine, mm, bytes| {
        store(machine, mm, at(bytes, 0), 7).unwrap();
        mm.madvise(VirtAddr(BASE), bytes, Advice::Free).unwrap();
    }),
    (3, "rights that come and go", |machine, mm, bytes| {
        let len = 4 * bytes;
        mm.mprotect(VirtAddr(BASE), len, R).unwrap();
        mm.mprotect(VirtAddr(BASE), len, RW).unwrap();
        store(machine, mm, at(bytes, 3), 7).unwrap();
    }),
    (3, "a child that stores", |machine, mm, bytes| {
        let child = mm.fork().unwrap();
        mm.switch_out();
        child.switch_in();
        store(machine, &child, at(bytes, 1), 7).unwrap();
        assert_eq!(load(machine, &child, at(bytes, 2)), Ok(0));
        child.switch_out();
        child.exit();
        mm.switch_in();
        // The parent takes over the pages that only it maps now.
        store(machine, mm, at(bytes, 2), 7).unwrap();
    }),
    (3, "a hole, and a store before it", |machine, mm, bytes| {
        mm.munmap(VirtAddr(at(bytes, 1) & !4095), 4096).unwrap();
        store(machine, mm, BASE + bytes, 7).unwrap();
    }),
    (2, "a hole in one and a store in another", |machine, mm, bytes| {
        mm.munmap(VirtAddr(at(bytes, 1) & !4095), 4096).unwrap();
        store(machine, mm, at(bytes, 2), 7).unwrap();
    }),
];

fn populated(folio: (Order, bool), fork: ForkStrategy, zap: ZapStrategy, cases: &[Case]) {
    populated_beside(false, folio, fork, zap, cases);
}

/// `neighbour`: a page in the same GiB stays mapped, so that no upper table is detached and leaves are
/// gathered one by one.
fn populated_beside(
    neighbour: bool,
    (folio, on_demand): (Order, bool),
    fork: ForkStrategy,
    zap: ZapStrategy,
    cases: &[Case],
) {
    let len = 4 * folio.bytes();
    let folios = FolioPolicy::only(folio).with_on_demand(on_demand);
    let zeroes = Zeroes { verify: folio == Order::BLOCK, ..Zeroes::default() };
    let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
    let config = Config { allocator, folios, fork, zap, ..Config::default() };
    // Folios of 1 GiB are counted as cleared without being cleared: no case here reads them.
    let clearing = folio != Order::GIGANTIC;
    let hosted = HostedConfig { clearing, ..HostedConfig::new(2 * len + 64 * MIB) };
    with_config(hosted, config, |machine, manager| {
        for &(kept, what, case) in cases {
            if on_demand {
                soil(manager, folio);
            }
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            mm.mmap(&anonymous(BASE, len)).unwrap();
            mm.madvise(VirtAddr(BASE), len, Advice::PopulateWrite).unwrap();
            assert_eq!(mm.rss().anon, len / 4096);
            case(machine, &mm, folio.bytes());
            mm.validate().unwrap();
            if neighbour {
                mm.mmap(&anonymous(BASE + len + 4 * MIB, 4096)).unwrap();
                store(machine, &mm, BASE + len + 4 * MIB, 1).unwrap();
            }
            let before = zeroed(manager);
            if neighbour {
                mm.munmap(VirtAddr(BASE), len).unwrap();
            }
            mm.switch_out();
            let unmapped = zeroed(manager);
            mm.exit();
            let back = (if neighbour { unmapped } else { zeroed(manager) } - before) / folio.frames();
            assert_eq!(back, kept, "{what}, {folio:?}, {fork:?}, {zap:?}");
            if folio == Order::BLOCK {
                manager.pages().verify_zeroes().unwrap();
            }
        }
    });
}

/// Nothing of this order is known to be zero from here on.
fn soil(manager: &Manager<'_>, order: Order) {
    let pages = manager.pages();
    let all = Vec::from_iter(std::iter::from_fn(|| pages.alloc_raw(Gfp::USER, order).ok()));
    all.into_iter().for_each(|frame| pages.free_raw(frame, order).unwrap());
}

/// Invariant 9, of large leaves.
#[test]
fn only_memory_without_a_store_is_freed_as_zeroes() {
    for zap in [ZapStrategy::Tables, ZapStrategy::Runs, ZapStrategy::PerPage] {
        for fork in [ForkStrategy::Copy, ForkStrategy::Share] {
            populated((Order::BLOCK, false), fork, zap, &CASES);
        }
    }
}

/// The same where leaves are gathered one by one: neighbours in memory, one of which was stored to.
#[test]
fn leaves_that_are_gathered_one_by_one_keep_what_is_known_of_each() {
    for zap in [ZapStrategy::Tables, ZapStrategy::Runs, ZapStrategy::PerPage] {
        for fork in [ForkStrategy::Copy, ForkStrategy::Share] {
            populated_beside(true, (Order::BLOCK, false), fork, zap, &CASES);
        }
    }
}

#[test]
fn a_gigabyte_without_a_store_is_freed_as_zeroes() {
    let some = [CASES[2], CASES[7]];
    for on_demand in [false, true] {
        populated((Order::GIGANTIC, on_demand), ForkStrategy::Copy, ZapStrategy::Tables, &some);
    }
}

/// A page that a fault brought was stored to, and small leaves do not record it.
#[test]
fn faults_take_the_mark_away() {
    for folio in [0, 4, 9] {
        let folio = Order::new(folio).unwrap();
        let config = Config { folios: FolioPolicy::only(folio), ..Config::default() };
        with_config(HostedConfig::new(64 * MIB), config, |machine, manager| {
            let before = zeroed(manager);
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            (0..4 * MIB / 4096).for_each(|page| store(machine, &mm, BASE + page * 4096, 1).unwrap());
            mm.switch_out();
            mm.exit();
            assert!(before - zeroed(manager) >= 1024, "{folio:?}");
        });
    }
}
