//! The background collapser: what it collapses, in which order, at what rate, and within which limits.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::page_alloc::Gfp;
use quire::stats::Stat;
use quire::vm::{
    Advice, CollapseLimits, Collapser, FolioPolicy, ForkStrategy, MapRequest, OrderPolicy, Refusal, Scanned,
};

use crate::collapse::support::{BASE, HUGE, PAGE, check, fill, is_large};
use crate::collapse::world::{MIB, Manager, R, Space, anonymous, load, run, small, with_forks, with_manager};

/// A policy that gives folios of 2 MiB on request; faults find none for what is mapped already.
const MADVISE: FolioPolicy = FolioPolicy::LINUX;

/// Maps memory and stores to these pages of each 2 MiB while the policy has small folios only.
fn scene(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, blocks: u64, filled: impl Fn(u64) -> bool) {
    manager.set_folio_policy(FolioPolicy::FRAMES);
    mm.mmap(&anonymous(BASE, blocks * HUGE)).unwrap();
    fill(machine, mm, BASE, (0..blocks * 512).filter(|page| filled(page % 512)));
    manager.set_folio_policy(MADVISE);
}

/// Continues until it has visited everything.
fn round(manager: &Manager<'_>, collapser: &mut Collapser) -> Vec<Scanned> {
    let mut calls = Vec::new();
    while calls.last().is_none_or(|call: &Scanned| !call.full_scan) {
        calls.push(manager.collapse_ahead(collapser));
        assert!(calls.len() < 1000, "it comes to no end");
    }
    calls
}

fn collapsed(calls: &[Scanned]) -> u64 {
    calls.iter().map(|call| call.collapsed.collapsed()).sum()
}

#[test]
fn defaults_are_those_of_linux() {
    let Collapser { limits, pages_to_scan, scan_sleep_millisecs, alloc_sleep_millisecs, .. } =
        Collapser::default();
    assert_eq!((pages_to_scan, scan_sleep_millisecs, alloc_sleep_millisecs), (4096, 10_000, 60_000));
    let CollapseLimits { max_ptes_none, max_ptes_swap, max_ptes_shared } = limits;
    assert_eq!((max_ptes_none, max_ptes_swap, max_ptes_shared), (511, 64, 256));
}

#[test]
fn it_goes_by_policy_and_advice() {
    small(|machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, 4, |_| true);
            let mut collapser = Collapser::default();
            mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
            mm.madvise(VirtAddr(BASE + HUGE), HUGE, Advice::NoHugePage).unwrap();
            assert_eq!(collapsed(&round(manager, &mut collapser)), 1);
            assert!(is_large(machine, mm, BASE));
            manager.set_folio_policy(FolioPolicy::FRAMES);
            assert_eq!(collapsed(&round(manager, &mut collapser)), 0);
            manager.set_folio_policy(MADVISE.with(Order::BLOCK, OrderPolicy::Always).with_pmd_mapped(false));
            assert_eq!(collapsed(&round(manager, &mut collapser)), 0, "no large leaves are wanted");
            manager.set_folio_policy(MADVISE.with(Order::BLOCK, OrderPolicy::Always));
            assert_eq!(collapsed(&round(manager, &mut collapser)), 2);
            assert!(!is_large(machine, mm, BASE + HUGE), "it refused");
            assert_eq!((collapser.pages_collapsed, collapser.full_scans), (3, 4));
            (0..4).for_each(|at| check(machine, mm, BASE + at * HUGE, |_| true));
        });
    });
}

/// Invariant 7: the work of one call is bounded, and all calls together visit everything.
#[test]
fn one_call_scans_so_many_pages() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        let mut collapser = Collapser::default();
        collapser.pages_to_scan = 1024;
        let spaces: Vec<_> = (0..3).map(|_| manager.new_mm().unwrap()).collect();
        for mm in &spaces {
            mm.switch_in();
            scene(machine, manager, mm, 5, |_| true);
            mm.madvise(VirtAddr(BASE), 5 * HUGE, Advice::HugePage).unwrap();
            mm.switch_out();
        }
        let calls = round(manager, &mut collapser);
        assert!(calls.iter().all(|call| call.pages <= 1024 && call.collapsed.collapsed() <= 2), "{calls:?}");
        assert!(calls.iter().all(|call| call.sleep_millisecs == 10_000));
        assert_eq!((collapsed(&calls), calls.len()), (15, 8), "the last one sees the end");
        // Large leaves cost next to nothing.
        assert_eq!(round(manager, &mut collapser).len(), 1);
        // Address spaces start and exit between two calls.
        let mut spaces = spaces.into_iter();
        spaces.next().unwrap().exit();
        let calls = round(manager, &mut collapser);
        assert_eq!((collapsed(&calls), calls.len()), (0, 1));
        spaces.for_each(|mm| mm.exit());
    });
}

#[test]
fn holes_are_limited() {
    for (filled, max_ptes_none, wanted) in
        [(1, 511, true), (64, 448, true), (63, 448, false), (512, 0, true), (511, 0, false)]
    {
        small(|machine, manager| {
            run(manager, |mm| {
                scene(machine, manager, mm, 1, |page| page < filled);
                mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
                if filled < 500 {
                    assert_eq!(load(machine, mm, BASE + 500 * PAGE), Ok(0), "the zero frame is a hole");
                }
                let limits = CollapseLimits { max_ptes_none, ..CollapseLimits::default() };
                let mut collapser = Collapser::within(limits);
                let calls = round(manager, &mut collapser);
                assert_eq!(collapsed(&calls), u64::from(wanted), "{filled} of {max_ptes_none}");
                assert_eq!(calls[0].collapsed.refused(Refusal::Holes), u64::from(!wanted));
                check(machine, mm, BASE, |page| page < filled);
            });
        });
    }
}

#[test]
fn shared_pages_are_limited() {
    for (stored, max_ptes_shared, wanted) in
        [(256, 256, true), (255, 256, false), (0, 511, false), (1, 511, true)]
    {
        with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Copy, |machine, manager| {
            run(manager, |mm| {
                scene(machine, manager, mm, 1, |_| true);
                mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
                let child = mm.fork().unwrap();
                fill(machine, mm, BASE, 0..stored);
                let limits = CollapseLimits { max_ptes_shared, ..CollapseLimits::default() };
                let mut collapser = Collapser::within(limits);
                round(manager, &mut collapser);
                assert_eq!(is_large(machine, mm, BASE), wanted, "{stored} of {max_ptes_shared}");
                child.exit();
            });
        });
    }
    // All pages of a shared table count as shared.
    with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Share, |machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, 1, |page| page < 100);
            mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
            let child = mm.fork().unwrap();
            let limits = CollapseLimits { max_ptes_shared: 99, ..CollapseLimits::default() };
            let mut collapser = Collapser::within(limits);
            assert_eq!(collapsed(&round(manager, &mut collapser)), 0);
            assert_eq!(manager.stat(Stat::TableUnshare), 0, "nothing is copied in order to be refused");
            collapser.limits.max_ptes_shared = 100;
            assert!(collapsed(&round(manager, &mut collapser)) > 0);
            check(machine, mm, BASE, |page| page < 100);
            child.exit();
        });
    });
}

#[test]
fn cold_and_lazy_pages_are_left_alone() {
    small(|machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, 2, |_| true);
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::HugePage).unwrap();
            // The call takes the accessed bits as well.
            mm.madvise(VirtAddr(BASE), HUGE, Advice::Free).unwrap();
            let mut collapser = Collapser::default();
            let calls = round(manager, &mut collapser);
            assert_eq!((collapsed(&calls), calls[0].collapsed.refused(Refusal::Lazy)), (1, 1));
            // After a store the page is ordinary memory again.
            fill(machine, mm, BASE, 0..512);
            assert_eq!(collapsed(&round(manager, &mut collapser)), 1);
            (0..2).for_each(|at| check(machine, mm, BASE + at * HUGE, |_| true));
        });
    });
}

#[test]
fn without_a_folio_it_sleeps_longer() {
    small(|machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, 2, |_| true);
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::HugePage).unwrap();
            let mut kept = Vec::new();
            while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME) {
                kept.push(frame);
            }
            let mut collapser = Collapser::default();
            let call = manager.collapse_ahead(&mut collapser);
            assert_eq!((call.sleep_millisecs, call.collapsed.last), (60_000, Some(Refusal::NoMemory)));
            assert_eq!(manager.stat(Stat::ThpCollapseAllocFailed), 1, "one failure is enough for one call");
            kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
            let calls = round(manager, &mut collapser);
            assert_eq!(
                (collapsed(&calls), calls[0].sleep_millisecs),
                (1, 10_000),
                "the other comes next time"
            );
            assert_eq!(collapsed(&round(manager, &mut collapser)), 1);
        });
    });
}

/// A range that is skipped counts as one page, however close the next mapping is.
#[test]
fn a_mapping_without_a_whole_range_counts_as_one_page() {
    small(|machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, 1, |_| true);
            mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
            mm.mmap(&MapRequest { prot: R, ..anonymous(BASE - PAGE, PAGE) }).unwrap();
            let calls = round(manager, &mut Collapser::default());
            assert_eq!(collapsed(&calls), 1);
            assert_eq!(calls.iter().map(|call| call.pages).sum::<u64>(), 1 + 512);
        });
    });
}
