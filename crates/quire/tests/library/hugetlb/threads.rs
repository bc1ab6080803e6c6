//! Several CPUs in one address space of huge pages at once, with a pool that is just large enough: a mapping
//! with a reservation gets its page, whatever the others do, and in the end all pages are in the pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::raw::RawPools;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize::Size2M;
use quire::page_alloc::NodeSet;
use quire::vm::{Advice, MapRequest, Sharing};

use crate::hugetlb::support::with_pools;
use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, fork, free_and_promised, info, load, of_file, private, store,
    with_config, within,
};
use testkit::{PATIENCE, held_up, seed, stress_time};

const CPUS: usize = 3;
const PAGES: u64 = 10;

fn parallel(action: impl Fn(&Hosted, &Manager<'_>, &Space<'_>, usize, &mut Rng) + Sync) {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    let machine = HostedConfig::new(128 << 20).with_cpus(CPUS);
    with_config(machine, Size2M, PAGES, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut random = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let end = Instant::now() + stress_time();
            while Instant::now() < end {
                action(machine, manager, &mm, cpu.index(), &mut random);
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.validate().unwrap();
        check(manager);
        // Independent of the last resize.
        let _ = manager.huge_pools().resize(manager.pages(), Size2M, NodeSet::ALL, PAGES);
    });
}

/// Each thread maps, touches and unmaps at places of its own; together they never need more than there is
/// (invariant 10).
#[test]
fn promises_hold_whatever_others_do() {
    let share = PAGES / CPUS as u64;
    parallel(|machine, _, mm, cpu, random| {
        let at = BASE + cpu as u64 * 64 * HUGE;
        let count = random.u64(1..=share);
        let sharing = if random.bool() { Sharing::Shared } else { Sharing::Private };
        mm.mmap(&MapRequest { sharing, ..private(at, count) }).unwrap();
        for page in 0..count {
            store(machine, mm, at + page * HUGE, page + 7).unwrap();
        }
        if random.bool() && sharing == Sharing::Private {
            mm.madvise(VirtAddr(at), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(load(machine, mm, at), Ok(0));
        }
        (1..count).for_each(|page| assert_eq!(load(machine, mm, at + page * HUGE), Ok(page + 7)));
        mm.munmap(VirtAddr(at), count * HUGE).unwrap();
    });
}

/// All threads touch the same pages of one private and one shared mapping, while one drops pages, another
/// forks, and the file is truncated and mapped anew.
#[test]
fn the_same_pages_are_touched_given_back_and_forked() {
    let children = AtomicU64::new(0);
    let filled = |stored: Result<(), FaultError>| match stored {
        // A child's copy may take the last page that was not reserved.
        Ok(()) | Err(FaultError::NoHugePage | FaultError::Poisoned) => {}
        Err(FaultError::BeyondEnd | FaultError::NotMapped) => {}
        Err(error) => panic!("{error:?}"),
    };
    parallel(|machine, manager, mm, cpu, random| {
        let file = manager.huge_file(Size2M, 0).unwrap();
        let own = BASE + (1 + cpu as u64) * (1 << 30);
        let place = BASE + random.u64(0..2) * HUGE;
        match random.u32(0..12) {
            0 => match mm.mmap(&private(BASE, 2)) {
                Ok(_) | Err(MmError::NoMemory) => {}
                Err(error) => panic!("{error:?}"),
            },
            1 => match mm.madvise(VirtAddr(place), HUGE, Advice::DontNeed) {
                Ok(()) | Err(MmError::NoMemory) => {}
                Err(error) => panic!("{error:?}"),
            },
            2 if children.fetch_add(1, Ordering::Relaxed) < 1 => {
                let child = fork(mm);
                mm.switch_out();
                child.switch_in();
                filled(store(machine, &child, place, 3));
                child.switch_out();
                mm.switch_in();
                drop(child);
                children.store(0, Ordering::Relaxed);
            }
            3 => {
                if mm.mmap(&of_file(&file, Sharing::Shared, own, (0, 1))).is_ok() {
                    filled(store(machine, mm, own, 1));
                    if random.bool() {
                        file.truncate(0).unwrap();
                    }
                    mm.munmap(VirtAddr(own), HUGE).unwrap();
                }
            }
            4 => {
                _ = manager.huge_pools().resize(
                    manager.pages(),
                    Size2M,
                    NodeSet::ALL,
                    PAGES - random.u64(0..2),
                )
            }
            _ => filled(store(machine, mm, place, random.u64(..))),
        }
    });
}

/// Threads map, fill, punch and truncate one file: pages and reservations are exact in the end (invariant
/// 10).
#[test]
fn one_file_is_filled_and_cut_by_all() {
    let machine = HostedConfig::new(128 << 20).with_cpus(CPUS);
    with_config(machine, Size2M, PAGES, |machine, manager| {
        let (mm, file) = (manager.new_mm().unwrap(), manager.huge_file(Size2M, 0).unwrap());
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut random = Rng::with_seed(u64::from(cpu.0));
            let (at, end) = (BASE + u64::from(cpu.0) * (1 << 30), Instant::now() + stress_time());
            while Instant::now() < end {
                let (first, count) = (random.u64(0..3), random.u64(1..3));
                let sharing = if random.bool() { Sharing::Shared } else { Sharing::Private };
                match mm.mmap(&of_file(&file, sharing, at, (first, count))) {
                    Ok(_) | Err(MmError::NoMemory) => {}
                    Err(error) => panic!("{error:?}"),
                }
                for page in 0..count {
                    match store(machine, &mm, at + page * HUGE, 1) {
                        Ok(())
                        | Err(FaultError::BeyondEnd | FaultError::NotMapped | FaultError::NoHugePage) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                match random.u32(0..6) {
                    0 => file.truncate(random.u64(0..4) * HUGE).unwrap(),
                    1 => file.punch_hole(first * HUGE..(first + 1) * HUGE).unwrap(),
                    2 => _ = file.allocate(first * HUGE..(first + 1) * HUGE),
                    3 => mm.munmap(VirtAddr(at), 4 * HUGE).unwrap(),
                    _ => {}
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.validate().unwrap();
        let (there, reserved) = file.huge_pages();
        assert!(there + reserved <= 5);
        drop(mm);
        let pool = info(manager, Size2M);
        assert_eq!((PAGES - pool.free, pool.reserved), (there, reserved), "the file's, and no others");
        drop(file);
    });
}

/// A parent drops a page that a child maps too, and is held up at each of its calls of the platform while the
/// child unmaps it. Afterwards one page is reserved to the mapping, either this page or another.
#[test]
fn a_page_that_a_child_unmaps_while_it_is_given_back_is_reserved_once() {
    let machine = HostedConfig::new(64 << 20).with_cpus(2);
    with_config(machine, Size2M, 3, |machine, manager| {
        let at_call = |round| {
            let mm = manager.new_mm().unwrap();
            let child = within(&mm, || {
                mm.mmap(&private(BASE, 1)).unwrap();
                store(machine, &mm, BASE, 1).unwrap();
                fork(&mm)
            });
            let give_back = || {
                mm.switch_in();
                mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
                mm.switch_out();
            };
            let unmap = || child.munmap(VirtAddr(BASE), HUGE).unwrap();
            let (plan, patience) = (InterruptPlan::Nth(round), Duration::from_millis(15));
            let calls = held_up(machine, plan, patience, give_back, unmap).calls;
            assert_eq!(free_and_promised(manager), (3, 1), "the child unmapped at call {round}");
            drop((mm, child));
            assert_eq!(free_and_promised(manager), (3, 0), "the child unmapped at call {round}");
            calls
        };
        let calls = at_call(u64::MAX);
        (0..calls).for_each(|round| _ = at_call(round));
    });
}

/// A pool that grows takes no surplus page away from other tasks, at any moment.
#[test]
fn surplus_pages_are_there_while_a_pool_grows() {
    with_pools(HostedConfig::new(128 << 20).with_cpus(2), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let resize = |wanted| assert_eq!(pools.resize(pages, Size2M, NodeSet::ALL, wanted).after, wanted);
        resize(1);
        let taken = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        pools.set_overcommit(pages, Size2M, 8);
        let at_call = |round| {
            let reserve = || pools.reserve(pages, Size2M, 1);
            let held = held_up(world.machine, InterruptPlan::Nth(round), PATIENCE, || resize(20), reserve);
            assert_eq!(held.second, Ok(()), "at call {round} of {}", held.calls);
            pools.unreserve(pages, Size2M, 1);
            resize(1);
            held.calls
        };
        let calls = at_call(u64::MAX);
        (0..calls).for_each(|round| _ = at_call(round));
        pools.give_raw(pages, Size2M, taken, false);
    });
}
