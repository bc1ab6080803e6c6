//! Underused folios are split, and their zero pages freed.

use hosted::raw::RawPages;
use hosted::{FailurePlan, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::error::FaultError;
use quire::stats::Stat;
use quire::vm::{Advice, FolioPolicy, Splitter, Underused};

use crate::collapse::support::{BASE, HUGE, PAGE, check, copied, fill, is_large, leaf};
use crate::collapse::world::{FORKS, MIB, Manager, anonymous, load, run, small, store, with_forks};

fn split(manager: &Manager<'_>, max_ptes_none: usize) -> Underused {
    let done = manager.split_underused(&mut Splitter::new(max_ptes_none), 1000);
    assert!(done.full_scan);
    done
}

#[test]
fn zeroes_are_given_up_and_nothing_else() {
    for filled in [1, 7, 100, 256] {
        small(|machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 2 * HUGE)).unwrap();
                let is_filled = |page: u64| page * 5 % 512 < filled;
                fill(machine, mm, BASE, (0..512).filter(|&page| is_filled(page)));
                fill(machine, mm, BASE + HUGE, 0..512);
                let free = 512 - filled;
                // Exactly as many zeroes as are allowed.
                assert_eq!(
                    split(manager, free as usize),
                    Underused { folios: 2, full_scan: true, ..Underused::default() }
                );
                let used = manager.meminfo().frames.used;
                let done = split(manager, free as usize - 1);
                assert_eq!((done.folios, done.split, done.missed), (2, 1, 0));
                assert_eq!(done.freed, free);
                assert_eq!(used - manager.meminfo().frames.used, free - 1, "a table came");
                assert_eq!((mm.rss().anon, manager.meminfo().anon), (512 + filled, 512 + filled));
                assert_eq!(manager.stat(Stat::ThpUnderusedSplitPage), 1);
                assert!(!is_large(machine, mm, BASE) && is_large(machine, mm, BASE + HUGE));
                let faults = manager.stat(Stat::Pgfault);
                check(machine, mm, BASE, is_filled);
                check(machine, mm, BASE + HUGE, |_| true);
                assert_eq!(manager.stat(Stat::Pgfault), faults, "zeroes are there to be read");
                // Pages that stay can be stored to as before; the others are allocated anew.
                (0..512).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
                assert_eq!(manager.stat(Stat::Pgfault) - faults, free);
                (0..512).for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page)));
                copied(mm, BASE);
                (0..512).for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page)));
            });
        });
    }
}

#[test]
fn what_does_not_suit_stays() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 4 * HUGE)).unwrap();
                (0..4).for_each(|at| fill(machine, mm, BASE + at * HUGE, [3].into_iter()));
                mm.mlock(VirtAddr(BASE), HUGE, false).unwrap();
                mm.write_protect_marked(VirtAddr(BASE + HUGE), HUGE).unwrap();
                let head = leaf(machine, mm, BASE + 2 * HUGE).unwrap().frame;
                let held = quire::addr::FrameRange::folio(head, Order::BLOCK);
                manager.pages().frames().hold(held);
                let child = mm.fork().unwrap();
                assert_eq!(
                    split(manager, 0).split,
                    0,
                    "they are shared, held, or their stores must be noticed"
                );
                child.exit();
                assert_eq!(split(manager, 0).split, 1);
                assert!((0..3).all(|at| is_large(machine, mm, BASE + at * HUGE)));
                manager.pages().release_raw(held);
                assert_eq!(split(manager, 511).split, 0, "Linux's default: none is underused");
                mm.remove_write_protect_marks(VirtAddr(BASE), 4 * HUGE).unwrap();
                mm.munlock(VirtAddr(BASE), 4 * HUGE).unwrap();
                assert_eq!(split(manager, 510).split, 3);
                (0..4).for_each(|at| check(machine, mm, BASE + at * HUGE, |page| page == 3));
                assert_eq!(mm.rss().anon, 4);
            });
        });
    }
}

/// When memory is out, a store is served by freeing the zero pages of other folios, if that was allowed.
#[test]
fn zeroes_are_the_last_reserve() {
    for limit in [511, 400] {
        small(|machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            manager.set_underused_limit(limit);
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 8 * HUGE)).unwrap();
                (0..4).for_each(|at| fill(machine, mm, BASE + at * HUGE, [9].into_iter()));
                let mut kept = Vec::new();
                while let Ok(frame) = manager.pages().alloc_raw(quire::page_alloc::Gfp::KERNEL, Order::FRAME)
                {
                    kept.push(frame);
                }
                let stored =
                    (0..512).take_while(|page| store(machine, mm, BASE + 6 * HUGE + page * PAGE, 1).is_ok());
                let stored = stored.count();
                assert_eq!((stored == 512, stored == 0), (limit == 400, limit == 511));
                (0..4).for_each(|at| check(machine, mm, BASE + at * HUGE, |page| page == 9));
                kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
            });
        });
    }
}

/// A folio that was freed lazily and stored to since keeps what was stored, whether it is split or only looked
/// at: its leaves lose the dirty bit, so they must lose the mark too.
#[test]
fn stores_to_lazily_freed_memory_outlive_a_look_at_the_folio() {
    for (limit, splits) in [(511, 0), (400, 1)] {
        small(|machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                store(machine, mm, BASE + 3 * PAGE, 1).unwrap();
                mm.madvise(VirtAddr(BASE), HUGE, Advice::Free).unwrap();
                assert_eq!(mm.usage_of_all().lazy_free, HUGE);
                store(machine, mm, BASE + 3 * PAGE, 7).unwrap();
                assert_eq!(split(manager, limit).split, splits);
                assert_eq!(mm.usage_of_all().lazy_free, 0);
                manager.reclaim();
                assert_eq!(load(machine, mm, BASE + 3 * PAGE), Ok(7));
            });
        });
    }
}

#[test]
fn one_call_looks_at_so_many_folios() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 5 * HUGE)).unwrap();
            (0..5).for_each(|at| fill(machine, mm, BASE + at * HUGE, [500].into_iter()));
            let mut splitter = Splitter::new(400);
            let counts: Vec<_> = (0..3).map(|_| manager.split_underused(&mut splitter, 2)).collect();
            assert_eq!(counts.iter().map(|done| done.split).collect::<Vec<_>>(), [2, 2, 1]);
            assert_eq!(counts.iter().map(|done| done.full_scan).collect::<Vec<_>>(), [false, false, true]);
            mm.clear_soft_dirty(VirtAddr(BASE), 5 * HUGE).unwrap();
            (0..5).for_each(|at| check(machine, mm, BASE + at * HUGE, |page| page == 500));
        });
    });
}

/// A task that tracks changes finds that a page became zero, though only the zero frame is mapped there.
#[test]
fn pages_of_zeroes_stay_soft_dirty() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        run(manager, |mm| {
            for dirty in [true, false] {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                fill(machine, mm, BASE, [0].into_iter());
                if !dirty {
                    mm.clear_soft_dirty(VirtAddr(BASE), HUGE).unwrap();
                }
                assert_eq!(split(manager, 400).split, 1);
                assert_eq!(mm.is_soft_dirty(VirtAddr(BASE + 9 * PAGE)), dirty);
                mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            }
        });
    });
}

/// A search starts where the last one ended: it ends when it has come to the end twice, and has then seen
/// everything.
#[test]
fn a_search_in_vain_goes_round_twice() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        manager.set_underused_limit(400);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * HUGE)).unwrap();
            fill(machine, mm, BASE, 0..3 * 512);
            machine.reset_counters();
            assert_eq!(split(manager, 400).folios, 3);
            let round = machine.counters().reschedule_points;
            assert!(round >= 3, "one for each folio");
            machine.set_failures(FailurePlan::From(0));
            machine.reset_counters();
            let failed = store(machine, mm, BASE + 3 * HUGE, 1);
            machine.set_failures(FailurePlan::Off);
            assert_eq!(failed, Err(FaultError::OutOfMemory));
            assert_eq!(machine.counters().reschedule_points, 2 * round);
        });
    });
}
