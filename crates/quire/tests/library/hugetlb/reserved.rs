//! What was reserved stays reserved: beside verbs that fail, pages that move, and other tasks' mappings.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, VirtAddr};
use quire::error::MmError;
use quire::hugetlb::HugeSize::{Size1G, Size2M};
use quire::hugetlb::{HugeFsInfo, HugeFsLimits, PoolInfo};
use quire::page_alloc::{NodePolicy, NodeSet};
use quire::platform::Context;
use quire::vm::Sharing::{self, Private, Shared};
use quire::vm::{Access, Advice, MapRequest, Mm};
use testkit::held_up;

use crate::hugetlb::support::{GIB, MIB, two_nodes};
use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, info, load, of_file, private, run, store, with_config, within,
};

pub(super) const PATIENCE: Duration = Duration::from_millis(15);

/// How long a step of the other CPU may take to begin on a busy machine.
const STEP: Duration = Duration::from_millis(300);

/// `MADV_DONTNEED` finds no page to reserve for one that a child shares. A page beside it, of which a piece was
/// stored to, keeps its contents (invariant 6).
#[test]
fn a_refused_dontneed_keeps_a_page_in_pieces() {
    let machine = HostedConfig::new(4 * GIB);
    with_config(machine, Size1G, 2, |machine, manager| {
        run(manager, |mm| {
            let pages = MapRequest { len: 2 * GIB, huge: Some(Size1G), ..private(BASE, 1) };
            // Pages that are known to be zero would be mapped whole.
            mm.mmap(&pages).unwrap();
            [BASE, BASE + GIB].into_iter().for_each(|at| store(machine, mm, at, 1).unwrap());
            mm.munmap(VirtAddr(BASE), 2 * GIB).unwrap();
            mm.mmap(&pages).unwrap();
            store(machine, mm, BASE + GIB, 3).unwrap();
            let child = mm.fork().unwrap();
            store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
            assert_eq!(mm.rss().huge, (GIB + HUGE) / 4096, "one page is in pieces");
            assert_eq!(mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed), Err(MmError::NoMemory));
            assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(5));
            assert_eq!(load(machine, mm, BASE + GIB), Ok(3));
            child.exit();
            mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed).unwrap();
            assert_eq!(info(manager, Size1G), PoolInfo { total: 2, free: 2, reserved: 2, surplus: 0 });
        });
    });
}

/// Calls `scene` with moments at which a CPU is held up: all of the last hundred, and some of the others. Returns
/// at how many the other CPU was done in time.
pub(super) fn at_moments(scene: impl Fn(u64) -> (u64, bool)) -> usize {
    let (calls, _) = scene(u64::MAX);
    let late = calls.saturating_sub(100);
    let early = (0..late).step_by((late / 20).max(1) as usize);
    early.chain(late..calls).filter(|&moment| scene(moment).1).count()
}

/// An address space with this mapping, to whose page 10 was stored.
pub(super) fn stored<'m>(machine: &Hosted, manager: &'m Manager<'_>, request: &MapRequest<'_>) -> Space<'m> {
    let mm = manager.new_mm().unwrap();
    within(&mm, || {
        mm.mmap(request).unwrap();
        store(machine, &mm, BASE, 10).unwrap();
    });
    mm
}

/// Refused advice has reserved nothing for the page that would have gone back: when that is unmapped, it is free.
#[test]
fn a_refused_dontneed_leaves_no_reservation_behind() {
    with_config(HostedConfig::new(64 * MIB), Size2M, 3, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            [BASE, BASE + HUGE].into_iter().for_each(|at| store(machine, mm, at, 1).unwrap());
            let child = mm.fork().unwrap();
            // The last free page: this process alone maps it.
            store(machine, mm, BASE + HUGE, 2).unwrap();
            assert_eq!(mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::DontNeed), Err(MmError::NoMemory));
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(2));
            mm.munmap(VirtAddr(BASE + HUGE), HUGE).unwrap();
            assert_eq!(info(manager, Size2M), PoolInfo { total: 3, free: 1, ..PoolInfo::default() });
            child.exit();
        });
    });
}

/// A parent drops a page while it moves: the leaves of the family are spread over the old page and the new one, so
/// that a count of one is not the only leaf. What the parent reserved is there
/// (invariant 10).
#[test]
fn a_page_that_is_dropped_while_it_moves_is_reserved_again() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 6, |machine, manager| {
        let in_time = at_moments(|moment| {
            let mm = stored(machine, manager, &private(BASE, 1));
            let child = mm.fork().unwrap();
            let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
            let drop_page = || within(&mm, || mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap());
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate(old), drop_page);
            assert_eq!(info(manager, Size2M).reserved, 1, "at moment {moment} of {}", held.calls);
            within(&child, || assert_eq!(load(machine, &child, BASE), Ok(10)));
            within(&mm, || assert_eq!(load(machine, &mm, BASE), Ok(0)));
            child.exit();
            mm.exit();
            check(manager);
            (held.calls, held.in_time)
        });
        assert!(in_time > 5, "{in_time}");
    });
}

/// No other page is there to be reserved for one that moves: the verb waits until that one stays or comes back.
#[test]
fn dropping_a_page_that_moves_does_not_need_another_one() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
        at_moments(|moment| {
            let mm = stored(machine, manager, &private(BASE, 1));
            let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
            let drop_page = || within(&mm, || mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed));
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate(old), drop_page);
            assert_eq!(held.second, Ok(()), "at moment {moment} of {}", held.calls);
            assert_eq!(info(manager, Size2M).reserved, 1, "at moment {moment} of {}", held.calls);
            mm.exit();
            check(manager);
            (held.calls, held.in_time)
        });
    });
}

/// A hole in a file takes a private page while it moves. The reservation holds again, wherever its leaf was
/// (invariant 10).
#[test]
fn a_page_that_a_hole_takes_while_it_moves_is_reserved_again() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 6, |machine, manager| {
        let in_time = at_moments(|moment| {
            let file = manager.huge_file(Size2M, HUGE).unwrap();
            let mm = stored(machine, manager, &of_file(&file, Private, BASE, (0, 1)));
            let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
            let punch = || file.punch_hole(0..HUGE).unwrap();
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate(old), punch);
            assert_eq!(info(manager, Size2M).reserved, 1, "at moment {moment} of {}", held.calls);
            mm.exit();
            drop(file);
            check(manager);
            (held.calls, held.in_time)
        });
        assert!(in_time > 5, "{in_time}");
    });
}

/// The minimum of a file system is there only when the page is: while one task unmaps the only page, at every
/// moment, another one reserves it or is refused. It never finds the pool empty behind a reservation (invariant 10).
#[test]
fn a_page_is_kept_for_a_file_system_once_it_is_free() {
    for sharing in [Private, Shared] {
        with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
            let refused = at_moments(|moment| unmap_beside_a_mapping(machine, manager, sharing, moment));
            assert!(refused > 0, "at some moment the page is neither in use nor free");
        });
    }
}

/// Returns the number of moments, and whether the mapping was refused.
fn unmap_beside_a_mapping(
    machine: &Hosted,
    manager: &Manager<'_>,
    sharing: Sharing,
    moment: u64,
) -> (u64, bool) {
    let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 4, min: 1 }).unwrap();
    let files = [fs.create(HUGE).unwrap(), fs.create(HUGE).unwrap()];
    let [first, second] = [manager.new_mm().unwrap(), manager.new_mm().unwrap()];
    first.mmap(&of_file(&files[0], sharing, BASE, (0, 1))).unwrap();
    within(&first, || store(machine, &first, BASE, 1).unwrap());
    let unmap = || {
        first.munmap(VirtAddr(BASE), HUGE).unwrap();
        files[0].truncate(0).unwrap();
    };
    let map = || {
        let mapped = second.mmap(&of_file(&files[1], Shared, BASE, (0, 1)));
        mapped.is_ok().then(|| within(&second, || store(machine, &second, BASE, 2)))
    };
    let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, unmap, map);
    assert!(held.second.is_none_or(|stored| stored.is_ok()), "at moment {moment}: {:?}", held.second);
    [first, second].into_iter().for_each(Mm::exit);
    drop(files);
    assert_eq!(fs.info(), HugeFsInfo { used: 0, kept: 1, max: 4 }, "at moment {moment}");
    check(manager);
    (held.calls, held.second.is_none())
}

/// A process forks while a hole takes its page: the child keeps no leaf of it, and the page is reserved again
/// to the parent (invariant 10).
#[test]
fn a_page_that_a_hole_takes_beside_a_fork_is_reserved_again() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 6, |machine, manager| {
        let in_time = at_moments(|moment| {
            let file = manager.huge_file(Size2M, HUGE).unwrap();
            let mm = stored(machine, manager, &of_file(&file, Private, BASE, (0, 1)));
            let punch = || file.punch_hole(0..HUGE).unwrap();
            let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, punch, || mm.fork().unwrap());
            let place = format!("at moment {moment} of {}", held.calls);
            assert!(machine.probe(held.second.root(), VirtAddr(BASE)).is_none(), "{place}");
            assert_eq!(info(manager, Size2M).reserved, 1, "{place}");
            mm.exit();
            held.second.exit();
            drop(file);
            check(manager);
            (held.calls, held.in_time)
        });
        assert!(in_time > 5, "{in_time}");
    });
}

/// A parent unmaps its page while it moves. Its reservation ends, and the file system keeps the page for its
/// minimum once the child gives it up, in whichever frames that is.
#[test]
fn a_file_system_keeps_a_page_that_is_unmapped_while_it_moves() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 4, |machine, manager| {
        let in_time = at_moments(|moment| {
            let fs = manager.huge_fs(Size2M, HugeFsLimits { max: 4, min: 1 }).unwrap();
            let file = fs.create(HUGE).unwrap();
            let mm = stored(machine, manager, &of_file(&file, Private, BASE, (0, 1)));
            let child = mm.fork().unwrap();
            let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
            let unmap = || mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate(old), unmap);
            child.exit();
            let now = fs.info();
            assert_eq!(now, HugeFsInfo { used: 0, kept: 1, max: 4 }, "at moment {moment} of {}", held.calls);
            mm.exit();
            drop(file);
            check(manager);
            (held.calls, held.in_time)
        });
        assert!(in_time > 5, "{in_time}");
    });
}

/// A file system goes with its last file while a private page of that file moves, and its place is given to
/// another one. The page counts in no other file system when it comes back.
#[test]
fn a_page_that_moves_counts_in_no_later_file_system() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 6, |machine, manager| {
        let in_time = at_moments(|moment| {
            let new_fs = || manager.huge_fs(Size2M, HugeFsLimits { max: 1, min: 0 }).unwrap();
            let fs = new_fs();
            let file = fs.create(HUGE).unwrap();
            let unreserved = MapRequest { noreserve: true, ..of_file(&file, Private, BASE, (0, 1)) };
            let mm = stored(machine, manager, &unreserved);
            let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
            let parts = Mutex::new(Some((fs, file)));
            let replace = || {
                mm.munmap(VirtAddr(BASE), HUGE).unwrap();
                drop(parts.lock().unwrap().take());
                new_fs()
            };
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate(old), replace);
            let fs = held.second;
            assert_eq!(fs.info().used, 0, "at moment {moment} of {}", held.calls);
            let file = fs.create(HUGE).unwrap();
            within(&mm, || {
                mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).unwrap();
                store(machine, &mm, BASE, 20).unwrap();
                assert_eq!(fs.info().used, 1);
            });
            mm.exit();
            drop(file);
            assert_eq!(fs.info().used, 0);
            check(manager);
            (held.calls, held.in_time)
        });
        assert!(in_time > 5, "{in_time}");
    });
}

/// Runs `store` on CPU 0. At each of its calls of the platform with these numbers, in ascending order, CPU 1 makes its next
/// step. Returns how many calls there were, and what `store` returned.
pub(super) fn at_calls<A: Send>(
    machine: &Hosted,
    moments: &[u64],
    store: impl Fn() -> A + Sync,
    steps: &[&(dyn Fn() + Sync)],
) -> (u64, A) {
    let [asked, done] = [const { AtomicUsize::new(0) }; 2];
    let calls = AtomicU64::new(0);
    let mut ends = machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 1 {
            for (number, step) in steps.iter().enumerate() {
                testkit::within(Duration::from_secs(10), || asked.load(Ordering::SeqCst) > number);
                step();
                done.fetch_add(1, Ordering::SeqCst);
            }
            return None;
        }
        let hold_up = || {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            for (number, _) in moments.iter().enumerate().filter(|&(_, &moment)| moment == call) {
                asked.store(number + 1, Ordering::SeqCst);
                // A step that waits for CPU 0 is told apart from one whose thread has not run yet.
                testkit::unless_stuck(machine, STEP, || done.load(Ordering::SeqCst) > number);
            }
        };
        let ran =
            machine.interrupt_at_calls(InterruptPlan::Every(1), Context::HardInterrupt, hold_up, &store);
        asked.store(steps.len(), Ordering::SeqCst);
        Some(ran.result)
    });
    let result = ends.swap_remove(0).expect("CPU 0 did its part");
    (calls.into_inner(), result)
}

/// A store takes the page back that its process shares with a child. If that child ends and another one comes
/// meanwhile, the other one loses the page.
#[test]
fn a_store_gets_its_reserved_page_beside_forks() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
        let scene = |moments: [u64; 2]| {
            let mm = stored(machine, manager, &private(BASE, 1));
            let child = Mutex::new(Some(mm.fork().unwrap()));
            let other = Mutex::new(None);
            let exit = || child.lock().unwrap().take().into_iter().for_each(Mm::exit);
            let fork = || *other.lock().unwrap() = Some(mm.fork().unwrap());
            let stores = || mm.fault(VirtAddr(BASE), Access::Write).map(drop);
            let (calls, stored) = at_calls(machine, &moments, stores, &[&exit, &fork]);
            assert_eq!(stored, Ok(()), "at moments {moments:?} of {calls}");
            other.into_inner().unwrap().into_iter().for_each(Mm::exit);
            mm.exit();
            check(manager);
            calls
        };
        let calls = scene([u64::MAX; 2]);
        for first in 0..calls {
            (first + 1..calls).for_each(|second| _ = scene([first, second]));
        }
    });
}

/// A task unmaps a page that moves to another node, and the pool is emptied, at any moment: the pool counts the new page
/// before a leaf can give it back.
#[test]
fn a_page_that_goes_back_while_it_moves_is_counted() {
    for shared in [false, true] {
        with_config(two_nodes(32 * MIB), Size2M, 0, |machine, manager| {
            let (pools, pages) = (manager.huge_pools(), manager.pages());
            let empty = || _ = pools.resize(pages, Size2M, NodeSet::ALL, 0);
            let in_time = at_moments(|moment| {
                _ = pools.resize_node(pages, Size2M, 0, 1);
                let file = shared.then(|| manager.huge_file(Size2M, HUGE).unwrap());
                let request =
                    file.as_ref().map_or(private(BASE, 1), |file| of_file(file, Shared, BASE, (0, 1)));
                let mm = stored(machine, manager, &request);
                let file = Mutex::new(file);
                let old = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
                let far = NodePolicy::Bind(NodeSet::one(1));
                let unmap = || {
                    mm.munmap(VirtAddr(BASE), HUGE).unwrap();
                    drop(file.lock().unwrap().take());
                    // A page that is given back before it is counted would be one more than its node has.
                    for node in 0..2 {
                        let part = pools.node_info(pages, Size2M, node);
                        assert!(part.free <= part.total, "{part:?} on node {node} at moment {moment}");
                    }
                    empty();
                };
                let plan = InterruptPlan::Nth(moment);
                let held = held_up(machine, plan, PATIENCE, || _ = manager.migrate_to(old, far), unmap);
                empty();
                assert_eq!(
                    info(manager, Size2M),
                    PoolInfo::default(),
                    "at moment {moment} of {}",
                    held.calls
                );
                mm.exit();
                check(manager);
                (held.calls, held.in_time)
            });
            assert!(in_time > 5, "{in_time}");
        });
    }
}

/// A page moves on while its move to another node ends: the other node has the page already when it leaves.
#[test]
fn a_page_that_moves_on_is_counted() {
    for shared in [false, true] {
        with_config(two_nodes(32 * MIB), Size2M, 0, |machine, manager| {
            _ = manager.huge_pools().resize_node(manager.pages(), Size2M, 0, 1);
            let file = shared.then(|| manager.huge_file(Size2M, HUGE).unwrap());
            let request = file.as_ref().map_or(private(BASE, 1), |file| of_file(file, Shared, BASE, (0, 1)));
            let mm = stored(machine, manager, &request);
            let to = |node| {
                let frame = mm.translate(VirtAddr(BASE), Access::Read).map_or(Frame(0), |found| found.frame);
                manager.migrate_to(frame, NodePolicy::Bind(NodeSet::one(node))).is_ok()
            };
            let in_time = at_moments(|moment| {
                let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, || to(1), || to(0));
                let one = PoolInfo { total: 1, ..PoolInfo::default() };
                assert_eq!(info(manager, Size2M), one, "at moment {moment} of {}", held.calls);
                check(manager);
                _ = to(0);
                (held.calls, held.in_time)
            });
            assert!(in_time > 5, "{in_time}");
            mm.exit();
            drop(file);
            _ = manager.huge_pools().resize(manager.pages(), Size2M, NodeSet::ALL, 0);
        });
    }
}
