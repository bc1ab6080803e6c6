//! What a collapse by copy changes, and what it keeps.

use quire::addr::{Order, VirtAddr};
use quire::error::MmError;
use quire::stats::Stat;
use quire::vm::{Advice, FolioPolicy, OrderPolicy};

use crate::collapse::support::{BASE, HUGE, PAGE, check, copied, counts, fill, is_large, leaf, word};
use crate::collapse::world::{MIB, R, anonymous, load, run, small, store};
use testkit::order;

#[test]
fn small_pages_become_one_folio() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 3 * HUGE)).unwrap();
            fill(machine, mm, BASE, 0..3 * 512);
            let (rss, used) = (mm.rss(), manager.meminfo().frames.used);
            // Only whole aligned 2 MiB are collapsed.
            let report = mm.collapse(VirtAddr(BASE + PAGE), 2 * HUGE).unwrap();
            assert_eq!(counts(&report), [1, 0, 0, 0]);
            assert!(is_large(machine, mm, BASE + HUGE) && !is_large(machine, mm, BASE));
            assert_eq!((mm.rss().anon, manager.meminfo().anon), (rss.anon, rss.anon));
            assert_eq!(mm.rss().page_tables, rss.page_tables - 1);
            assert!(manager.meminfo().frames.used <= used, "the old frames and the table are free");
            (0..3).for_each(|at| check(machine, mm, BASE + at * HUGE, |_| true));
            // The folio is exclusive, so stores need no fault.
            let faults = manager.stat(Stat::Pgfault);
            store(machine, mm, BASE + HUGE + 5 * PAGE, 7).unwrap();
            assert_eq!(
                (load(machine, mm, BASE + HUGE + 5 * PAGE), manager.stat(Stat::Pgfault)),
                (Ok(7), faults)
            );
            let again = mm.collapse(VirtAddr(BASE), 3 * HUGE).unwrap();
            assert_eq!(counts(&again), [2, 0, 1, 0]);
            assert_eq!(manager.stat(Stat::ThpCollapseAlloc), 3);
            assert_eq!(manager.stat(Stat::ThpCollapseCopied), 3);
        });
    });
}

#[test]
fn holes_and_zeroes_become_resident() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        for filled in [1, 100, 400, 511] {
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                let is_filled = |page: u64| page * 7 % 512 < filled;
                fill(machine, mm, BASE, (0..512).filter(|&page| is_filled(page)));
                // Some of the holes are leaves of the zero frame.
                for page in (0..512).filter(|&page| page % 3 == 0 && !is_filled(page)) {
                    assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(0));
                }
                assert_eq!(mm.rss().anon, filled);
                copied(mm, BASE);
                assert_eq!(mm.rss().anon, 512);
                check(machine, mm, BASE, is_filled);
                store(machine, mm, BASE + 9 * PAGE, 9).unwrap();
                assert_eq!(load(machine, mm, BASE + 9 * PAGE), Ok(9));
            });
        }
    });
}

#[test]
fn folios_of_every_size_are_copied_or_only_reshaped() {
    for number in 0..=9 {
        small(|machine, manager| {
            let policy = FolioPolicy::FRAMES.with(order(number), OrderPolicy::Always);
            manager.set_folio_policy(policy.with_pmd_mapped(false));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 2 * HUGE)).unwrap();
                fill(machine, mm, BASE, 0..1024);
                let bytes = machine.counters().bytes_copied;
                let report = mm.collapse(VirtAddr(BASE), 2 * HUGE).unwrap();
                let (copied, reshaped) = if number == 9 { (0, 2) } else { (2, 0) };
                assert_eq!(counts(&report), [copied, reshaped, 0, 0]);
                // Each page is copied once, since no CPU stores.
                assert_eq!(machine.counters().bytes_copied - bytes, copied * HUGE);
                assert_eq!(manager.stat(Stat::ThpCollapseRecopied), 0);
                assert_eq!(manager.stat(Stat::ThpCollapseRounds), 2 * copied);
                check(machine, mm, BASE, |_| true);
                check(machine, mm, BASE + HUGE, |_| true);
            });
        });
    }
}

/// A program that touches the range waits for one flush at most; no page is copied meanwhile.
#[test]
fn two_flushes_and_no_page_in_the_pause() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, 0..512);
            machine.reset_counters();
            copied(mm, BASE);
            let counted = machine.counters();
            assert_eq!((counted.flushes_local, counted.flushes_remote), (2, 0));
            assert_eq!((counted.flushes_tables, counted.bytes_copied), (1, HUGE));
            assert_eq!(
                (manager.stat(Stat::ThpCollapsePages), manager.stat(Stat::ThpCollapseRecopied)),
                (512, 0)
            );
            assert!(counted.reschedule_points >= 4, "{counted:?}");
            // A copied page costs time, so few pages are not worth a round, and no missing page is worth a
            // copy.
            mm.mmap(&anonymous(BASE + HUGE, HUGE)).unwrap();
            fill(machine, mm, BASE + HUGE, [3, 4, 500].into_iter());
            machine.reset_counters();
            copied(mm, BASE + HUGE);
            assert_eq!(machine.counters().bytes_copied, 3 * PAGE);
        });
    });
}

#[test]
fn what_hardware_recorded_is_kept() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            for stored in [false, true] {
                let base = BASE + u64::from(stored) * HUGE;
                mm.mmap(&anonymous(base, HUGE)).unwrap();
                fill(machine, mm, base, 0..512);
                mm.clear_soft_dirty(VirtAddr(base), HUGE).unwrap();
                if stored {
                    store(machine, mm, base + 77 * PAGE, word(base + 77 * PAGE)).unwrap();
                }
                copied(mm, base);
                for page in [0, 77, 511] {
                    assert_eq!(mm.is_soft_dirty(VirtAddr(base + page * PAGE)), stored, "any of them, so all");
                }
                let found = leaf(machine, mm, base).unwrap();
                assert_eq!(found.write, stored, "the next store is noticed");
                check(machine, mm, base, |_| true);
                store(machine, mm, base + PAGE, 1).unwrap();
                assert!(mm.is_soft_dirty(VirtAddr(base)));
            }
        });
    });
}

#[test]
fn rights_locks_and_lazy_pages() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, 0..300);
            mm.mprotect(VirtAddr(BASE), HUGE, R).unwrap();
            copied(mm, BASE);
            assert!(store(machine, mm, BASE, 1).is_err());
            check(machine, mm, BASE, |page| page < 300);
            mm.mprotect(VirtAddr(BASE), HUGE, crate::collapse::world::RW).unwrap();
            store(machine, mm, BASE, word(BASE)).unwrap();
            check(machine, mm, BASE, |page| page < 300);
            // Pages that the program allowed to be dropped are kept when it asks for a collapse.
            let lazy = BASE + HUGE;
            mm.mmap(&anonymous(lazy, HUGE)).unwrap();
            fill(machine, mm, lazy, 0..512);
            mm.madvise(VirtAddr(lazy), HUGE, Advice::Free).unwrap();
            copied(mm, lazy);
            check(machine, mm, lazy, |_| true);
            let locked = BASE + 2 * HUGE;
            mm.mmap(&anonymous(locked, HUGE)).unwrap();
            fill(machine, mm, locked, 0..512);
            mm.mlock(VirtAddr(locked), HUGE, false).unwrap();
            copied(mm, locked);
            assert_eq!(mm.rss().locked, 512);
        });
    });
}

#[test]
fn madvise_says_why() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * HUGE)).unwrap();
            let collapse = |at: u64, len| mm.madvise(VirtAddr(at), len, Advice::Collapse);
            fill(machine, mm, BASE, 0..512);
            assert_eq!(collapse(BASE, HUGE), Ok(()));
            assert_eq!(collapse(BASE, HUGE), Ok(()), "it is large");
            assert_eq!(collapse(BASE, 2 * HUGE), Err(MmError::Invalid), "nothing is there");
            assert_eq!(collapse(BASE, 3 * HUGE), Err(MmError::NoMemory), "no mapping");
            assert_eq!(collapse(BASE + 1, HUGE), Err(MmError::Invalid));
            assert_eq!(collapse(BASE, PAGE), Ok(()), "no 2 MiB in it");
            assert_eq!(collapse(BASE, u64::MAX - 5000), Err(MmError::Invalid));
            // However long the range, only mapped parts take time.
            assert_eq!(collapse(0, u64::MAX >> 1), Err(MmError::NoMemory));
            let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!(counts(&report), [0, 0, 1, 0]);
        });
    });
}

/// A collapsed folio can be split, moved, copied on write and freed like any other.
#[test]
fn a_collapsed_folio_is_like_any_other() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * HUGE)).unwrap();
            fill(machine, mm, BASE, 0..2048);
            assert_eq!(mm.collapse(VirtAddr(BASE), 4 * HUGE).unwrap().copied, 4);
            let head = |at: u64| leaf(machine, mm, BASE + at * HUGE).unwrap().frame;
            assert_eq!(manager.split_folio(head(0), Order::FRAME), Ok(0));
            assert_eq!(manager.migrate(head(1)), Ok(512));
            mm.munmap(VirtAddr(BASE + 2 * HUGE), MIB).unwrap();
            let to = VirtAddr(BASE + 64 * HUGE);
            mm.mremap(VirtAddr(BASE + 3 * HUGE), HUGE, HUGE, quire::vm::Remap::Fixed(to)).unwrap();
            check(machine, mm, BASE, |_| true);
            check(machine, mm, BASE + HUGE, |_| true);
            for page in 256..512 {
                let at = BASE + 2 * HUGE + page * PAGE;
                assert_eq!(load(machine, mm, at), Ok(word(at)));
            }
            for page in 0..512 {
                assert_eq!(load(machine, mm, to.0 + page * PAGE), Ok(word(BASE + 3 * HUGE + page * PAGE)));
            }
            // The moved folio keeps its origin.
            let frame = leaf(machine, mm, to.0).unwrap().frame;
            let mut found = Vec::new();
            manager.mappings(frame, |_, addr| found.push(addr));
            assert_eq!(found, [to]);
            // After a split it is collapsed again.
            mm.validate().unwrap();
            let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!(report.collapsed(), 1);
            check(machine, mm, BASE, |_| true);
        });
    });
}

/// Where most of the range is holes, a folio that is known to be zero saves clearing them.
#[test]
fn a_range_that_is_mostly_holes_takes_a_folio_of_zeroes() {
    for (filled, cleared) in [(255, 0), (256, 256 * PAGE)] {
        small(|machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                fill(machine, mm, BASE, 0..filled);
                let before = machine.counters().bytes_cleared;
                copied(mm, BASE);
                assert_eq!(machine.counters().bytes_cleared - before, cleared, "{filled} pages are there");
                check(machine, mm, BASE, |page| page < filled);
            });
        });
    }
}
