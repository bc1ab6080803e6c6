//! Memory runs out at each allocation of a move: it is done, or changes nothing.

use std::sync::Mutex;

use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Order, VirtAddr};
use quire::error::{AllocError, MigrateError};
use quire::page_alloc::Gfp;
use quire::stats::Stat;
use quire::vm::{Access, Backing, FolioPolicy, ForkStrategy, MapRequest, Mm, Sharing};

use crate::migrate::support::{PAGE, frame_at, head_of};
use crate::migrate::world::{
    FORKS, MIB, Manager, Space, anonymous, load, run, store, with_forks, with_manager,
};
use testkit::{PATIENCE, held_up, order};

const BASE: u64 = 64 * MIB;

/// Fails each allocation of `action` in turn until none is left to fail, and checks after each.
fn at_every_index(machine: &Hosted, mut action: impl FnMut() -> bool, check: impl Fn()) -> u64 {
    for index in 0.. {
        machine.set_failures(FailurePlan::Nth(index));
        let failed = machine.allocations_failed();
        action();
        let more = machine.allocations_failed() > failed;
        machine.set_failures(FailurePlan::Off);
        check();
        if !more {
            return index;
        }
    }
    unreachable!()
}

#[test]
fn a_move_may_fail_at_every_allocation() {
    for fork in FORKS {
        for (number, pmd) in [(0, false), (3, false), (9, false), (9, true)] {
            with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
                manager.set_folio_policy(FolioPolicy::only(order(number)).with_pmd_mapped(pmd));
                run(manager, |mm| moves_of_one(machine, manager, mm, order(number)));
            });
        }
    }
}

fn moves_of_one(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, order: Order) {
    let pages = order.frames();
    mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
    (0..pages).for_each(|page| store(machine, mm, BASE + page * PAGE, page + 1).unwrap());
    let child = mm.fork().unwrap();
    let check = || {
        for page in 0..pages {
            assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page + 1));
            assert!(manager.pages().counts().mapcount(frame_at(machine, &child, BASE + page * PAGE)) > 0);
        }
        manager.validate().unwrap();
        mm.validate().unwrap();
        child.validate().unwrap();
    };
    let tries = at_every_index(
        machine,
        || {
            let head = head_of(manager.pages(), frame_at(machine, mm, BASE));
            let used = manager.meminfo().frames.used;
            let moved = manager.migrate(head);
            assert!(matches!(moved, Ok(_) | Err(MigrateError::OutOfMemory)), "{moved:?}");
            assert!(manager.meminfo().frames.used <= used + 2 + pages, "the allocated frames were freed");
            moved.is_ok()
        },
        check,
    );
    assert!(tries > 0);
    mm.switch_out();
    child.switch_in();
    (0..pages).for_each(|page| assert_eq!(load(machine, &child, BASE + page * PAGE), Ok(page + 1)));
    child.switch_out();
    mm.switch_in();
    child.exit();
}

#[test]
fn pages_of_files_stay_or_move_when_memory_is_out() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            let file = manager.shmem(8 * PAGE).unwrap();
            let backing = Backing::File { file: &file, page_offset: 0 };
            let shared = MapRequest { backing, sharing: Sharing::Shared, ..anonymous(BASE, 8 * PAGE) };
            mm.mmap(&shared).unwrap();
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let frame = frame_at(machine, mm, BASE);
            machine.set_failures(FailurePlan::From(0));
            assert_eq!(manager.migrate(frame), Err(MigrateError::OutOfMemory));
            machine.set_failures(FailurePlan::Off);
            (0..8).for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page)));
            assert_eq!(frame_at(machine, mm, BASE), frame);
        });
    });
}

#[test]
fn emptying_a_range_may_fail_at_every_allocation() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(2)));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 40 * MIB)).unwrap();
            for page in 0..40 * 256 {
                store(machine, mm, BASE + page * PAGE, page).unwrap();
            }
            for page in (0..40 * 256).filter(|page| page % 256 != 7) {
                mm.munmap(VirtAddr(BASE + page * PAGE), PAGE).unwrap();
            }
            manager.pages().lists().drain_all();
            let check = || {
                for page in (7..40 * 256).step_by(256) {
                    assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page));
                }
                manager.validate().unwrap();
            };
            // All allocations fail from the first on; later, some do.
            machine.set_failures(FailurePlan::From(1));
            let refused = manager.alloc_contig(Gfp::USER, 20, 1);
            machine.set_failures(FailurePlan::Off);
            assert_eq!(refused, Err(AllocError::OutOfMemory));
            check();
            for from in 1..12 {
                machine.set_failures(FailurePlan::Nth(from));
                let found = manager.alloc_contig(Gfp::USER, 20, 1);
                machine.set_failures(FailurePlan::Off);
                check();
                if let Ok(run) = found {
                    assert!(!run.frames().contains(frame_at(machine, mm, BASE + 7 * PAGE)));
                    manager.pages().free_contig(run).unwrap();
                }
                mm.fault(VirtAddr(BASE + 7 * PAGE), Access::Write).unwrap();
            }
        });
    });
}

/// A child that ends leaves its family before its leaves go, so a move does not find them: the page that it shares with its
/// parent is not free then, and counts as one that could not be moved.
#[test]
fn a_page_that_an_ending_task_maps_counts_as_not_moved() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2);
    with_forks(machine, ForkStrategy::Copy, |machine, manager| {
        let counts = || [Stat::PgmigrateSuccess, Stat::PgmigrateFail].map(|stat| manager.stat(stat));
        let scene = |moment| {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            let child = Mutex::new(Some(mm.fork().unwrap()));
            let (old, [moved, failed]) = (frame_at(machine, &mm, BASE), counts());
            let exit = || child.lock().unwrap().take().into_iter().for_each(Mm::exit);
            let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, exit, || manager.migrate(old));
            match held.second {
                Ok(_) => assert_eq!(counts(), [moved + 1, failed], "at moment {moment}"),
                Err(error) => {
                    assert_eq!(error, MigrateError::Busy, "at moment {moment}");
                    assert_eq!(counts(), [moved, failed + 1], "at moment {moment}");
                }
            }
            mm.exit();
            (held.calls, held.second.is_err())
        };
        let (calls, _) = scene(u64::MAX);
        let busy = (0..calls).filter(|&moment| scene(moment).1).count();
        assert!(busy > 0, "the page never moved while the child was ending");
    });
}
