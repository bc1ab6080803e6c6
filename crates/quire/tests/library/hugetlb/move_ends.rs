//! How moves of pages of a pool end: what they count, and what becomes of both pages where another task was faster.

use hosted::raw::RawCounts;
use hosted::{FailurePlan, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order, PageSize, VirtAddr};
use quire::error::MigrateError;
use quire::hugetlb::{Charge, HugeGroup, HugeSize::Size2M, PoolInfo};
use quire::page_alloc::{Contents, Gfp};
use quire::stats::Stat;
use quire::vm::Access;
use quire::vm::Sharing::Shared;

use crate::hugetlb::reserved::{PATIENCE, at_moments};
use crate::hugetlb::support::MIB;
use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, info, load, of_file, private, run, store, with_config, with_huge,
    with_pool, within,
};
use testkit::held_up;

/// A pool with one page, which is not free.
const ONE: PoolInfo = PoolInfo { total: 1, free: 0, surplus: 0, reserved: 0 };

fn frame_at(mm: &Space<'_>, addr: u64) -> Frame {
    mm.translate(VirtAddr(addr), Access::Read).expect("mapped").frame
}

/// Frames that moved, and frames that could not.
fn moves(manager: &Manager<'_>) -> [u64; 2] {
    [Stat::PgmigrateSuccess, Stat::PgmigrateFail].map(|stat| manager.stat(stat))
}

#[test]
fn the_frames_of_a_page_count_as_moved_or_as_not() {
    with_huge(4, |machine, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            mm.mmap(&of_file(&file, Shared, BASE + 8 * HUGE, (0, 1))).unwrap();
            for at in [BASE, BASE + 8 * HUGE] {
                store(machine, mm, at, 1).unwrap();
                let [moved, failed] = moves(manager);
                assert_eq!(manager.migrate(frame_at(mm, at)), Ok(512));
                assert_eq!(moves(manager), [moved + 512, failed]);
                machine.set_failures(FailurePlan::From(0));
                let refused = manager.migrate(frame_at(mm, at));
                machine.set_failures(FailurePlan::Off);
                assert_eq!(refused, Err(MigrateError::OutOfMemory));
                assert_eq!(moves(manager), [moved + 512, failed + 512]);
            }
        });
        drop(file);
    });
}

/// A task takes a free page while another one is allocated in its place. The page is the task's then, and moves as
/// such; the other one is freed.
#[test]
fn a_free_page_that_is_taken_meanwhile_is_not_replaced() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
        let lost = at_moments(|moment| {
            let mut free = Vec::new();
            manager.huge_pools().each_free(manager.pages(), Size2M, |frame| free.push(frame));
            let mm = manager.new_mm().unwrap();
            let take = || {
                mm.mmap(&private(BASE, 1)).unwrap();
                mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            };
            let allocated = manager.stat(Stat::HtlbBuddyAllocSuccess);
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || manager.migrate(free[0]), take);
            let allocated = manager.stat(Stat::HtlbBuddyAllocSuccess) - allocated;
            assert_eq!(info(manager, Size2M), ONE, "at moment {moment} of {}", held.calls);
            mm.exit();
            check(manager);
            // One was allocated for the free page, and one for the task's.
            (held.calls, held.in_time && allocated == 2)
        });
        assert!(lost > 0, "the page was never taken while another one was allocated");
    });
}

/// A free page leaves for a weak frame, since the pool can spare it. Of those that are left as many are surplus as before.
#[test]
fn a_free_page_that_leaves_for_a_weak_frame_was_no_surplus_page() {
    with_pool(Size2M, 64 * MIB, 0, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        pools.set_overcommit(pages, Size2M, 1);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
            assert_eq!(pools.adopt(pages, Size2M, std::iter::once(folio)), 1);
            let surplus = PoolInfo { total: 1, free: 0, surplus: 1, reserved: 0 };
            assert_eq!(info(manager, Size2M), PoolInfo { total: 2, free: 1, ..surplus });
            let mut free = Frame(0);
            pools.each_free(pages, Size2M, |frame| free = frame);
            assert_eq!(manager.soft_offline(free.add(7)), Ok(()));
            assert_eq!(info(manager, Size2M), surplus);
        });
    });
}

/// A page of a mapping, counted once more, as if a leaf mapped it that no visit finds.
fn missed<'m>(machine: &Hosted, manager: &'m Manager<'_>, group: HugeGroup) -> (Space<'m>, Frame) {
    let mm = manager.new_mm().unwrap();
    mm.set_huge_group(group);
    within(&mm, || {
        mm.mmap(&private(BASE, 1)).unwrap();
        store(machine, &mm, BASE, 10).unwrap();
    });
    let page = frame_at(&mm, BASE);
    manager.pages().counts().counter().map_large(page, PageSize::Size2M);
    (mm, page)
}

/// Takes that count back.
fn forget(manager: &Manager<'_>, page: Frame) {
    manager.pages().counts().counter().unmap_large_raw(page, PageSize::Size2M, Contents::Unknown);
}

/// A leaf is left that no visit found. Its page stays, counted and charged like the one to which the other leaf has
/// moved, until that leaf goes.
#[test]
fn a_page_with_a_leaf_that_no_visit_finds_stays_beside_the_new_one() {
    with_huge(1, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let group = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let counts = || (info(manager, Size2M), pools.group_counters(group, Size2M, Charge::Usage).current);
        let (mm, old) = missed(machine, manager, group);
        let [moved, failed] = moves(manager);
        assert_eq!(manager.migrate(old), Err(MigrateError::Busy));
        assert_eq!(moves(manager), [moved, failed + 512]);
        assert_eq!(counts(), (PoolInfo { total: 2, surplus: 1, ..ONE }, 2));
        assert_ne!(frame_at(&mm, BASE), old);
        within(&mm, || assert_eq!(load(machine, &mm, BASE), Ok(10)));
        forget(manager, old);
        assert_eq!(manager.migrate(old), Err(MigrateError::NotMovable), "it has left the pool");
        assert_eq!(counts(), (ONE, 1));
        mm.exit();
        assert_eq!(counts().1, 0);
    });
}

/// That leaf goes at any moment of the move. Its page goes back once: with the leaf, or at the end of the move.
#[test]
fn a_page_whose_last_leaf_goes_while_it_moves_goes_back_once() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
        let (mut busy, free) = (0, PoolInfo { free: 1, ..ONE });
        let mut scene = |moment| {
            let (mm, old) = missed(machine, manager, HugeGroup::NONE);
            let (migrate, plan) = (|| manager.migrate(old), InterruptPlan::Nth(moment));
            let held = held_up(machine, plan, PATIENCE, migrate, || forget(manager, old));
            busy += u64::from(held.first == Err(MigrateError::Busy) && held.in_time);
            within(&mm, || assert_eq!(load(machine, &mm, BASE), Ok(10)));
            mm.exit();
            assert_eq!(info(manager, Size2M), free, "at moment {moment} of {}", held.calls);
            check(manager);
            held.calls
        };
        let calls = scene(u64::MAX);
        (0..calls).for_each(|moment| _ = scene(moment));
        assert!(busy > 0, "the leaf never went after the move had missed it");
    });
}
