//! A pool grows and shrinks: how far, at what cost, and with which counters.

use hosted::raw::{RawPages, RawPools};
use hosted::{HostedConfig, InterruptPlan, MemoryRange};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::hugetlb::{HugeSize, Resized, Stopped};
use quire::limits::HUGE_BATCH;
use quire::manager::Config;
use quire::page_alloc::{Gfp, NodeSet, Urgency};
use quire::stats::Stat;
use testkit::{PATIENCE, held_up, ranges_of};

use crate::hugetlb::support::{BOTH, GIB, MIB, two_nodes, with_pools};

use HugeSize::{Size1G, Size2M};

#[test]
fn a_pool_grows_evenly_and_shrinks_to_nothing() {
    with_pools(two_nodes(256 * MIB), |world| {
        let resize = |wanted| world.pools.resize(world.pages, Size2M, BOTH, wanted);
        assert_eq!(resize(101), Resized { before: 0, after: 101, wanted: 101, stopped: None });
        let of = |node| world.pools.node_info(world.pages, Size2M, node);
        assert_eq!((of(0).total + of(1).total, of(0).total.abs_diff(of(1).total)), (101, 1));
        assert_eq!((world.info(Size2M).free, world.info(Size2M).surplus), (101, 0));
        world.check();
        assert_eq!(resize(101).stopped, None);
        assert_eq!(resize(40), Resized { before: 101, after: 40, wanted: 40, stopped: None });
        assert_eq!(resize(0).after, 0);
        world.pages.lists().drain_all();
        assert_eq!(world.pages.memory_info().used, 0);
    });
}

#[test]
fn a_node_has_a_share_of_its_own() {
    with_pools(two_nodes(256 * MIB), |world| {
        let node = |node, wanted| world.pools.resize_node(world.pages, Size2M, node, wanted);
        let of = |node| world.pools.node_info(world.pages, Size2M, node).total;
        assert_eq!(node(1, 30), Resized { before: 0, after: 30, wanted: 30, stopped: None });
        assert_eq!(node(0, 10).after, 10);
        assert_eq!((of(0), of(1)), (10, 30));
        assert_eq!(node(1, 4), Resized { before: 30, after: 4, wanted: 4, stopped: None });
        assert_eq!((of(0), of(1)), (10, 4));
        let done = node(0, 1000);
        assert_eq!((done.stopped, of(1)), (Some(Stopped::OutOfMemory), 4));
        assert!(done.after > 100 && of(0) == done.after, "{done:?}");
    });
}

#[test]
fn a_machine_gives_what_it_has() {
    with_pools(two_nodes(64 * MIB), |world| {
        let done = world.pools.resize(world.pages, Size2M, BOTH, 1000);
        assert_eq!((done.stopped, done.wanted), (Some(Stopped::OutOfMemory), 1000));
        assert!(done.after > 50 && done.after < 64, "{done:?}");
        assert_eq!(world.info(Size2M).total, done.after);
    });
}

/// The published schemes have to allocate in order to free. Here a pool shrinks when all memory is used, and
/// allocates nothing.
#[test]
fn shrinking_needs_no_memory() {
    with_pools(two_nodes(64 * MIB), |world| {
        let _ = world.pools.resize(world.pages, Size2M, BOTH, 1000);
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let rest: Vec<_> = std::iter::from_fn(|| world.pages.alloc_raw(gfp, Order::FRAME).ok()).collect();
        assert_eq!(world.pages.memory_info().available(), 0);
        world.machine.set_failures(hosted::FailurePlan::From(0));
        assert_eq!(world.pools.resize(world.pages, Size2M, BOTH, 0).after, 0);
        world.machine.set_failures(hosted::FailurePlan::Off);
        rest.into_iter().for_each(|frame| world.pages.free_raw(frame, Order::FRAME).unwrap());
    });
}

/// No flush; the pool's lock is taken once to claim, once to add each batch, and once for each batch that is
/// freed.
#[test]
fn a_resize_flushes_nothing_and_counts_its_locks() {
    with_pools(HostedConfig::new(GIB), |world| {
        let count = 3 * HUGE_BATCH as u64;
        let locks = || world.pages.lists().stat(Stat::HugetlbLock);
        let before = (locks(), world.machine.counters());
        let _ = world.pools.resize(world.pages, Size2M, BOTH, count);
        // The first count, three batches, the check that finds no page missing, and the last count.
        assert_eq!(locks() - before.0, 1 + 2 * 3 + 1 + 1);
        let between = locks();
        let _ = world.pools.resize(world.pages, Size2M, BOTH, 0);
        assert_eq!(locks() - between, 1 + 3 + 1 + 1);
        let after = world.machine.counters();
        let flushes = |counters: &hosted::Counters| counters.flushes_local + counters.flushes_remote;
        assert_eq!(flushes(&after) - flushes(&before.1), 0);
    });
}

#[test]
fn pages_of_a_gigabyte_come_and_go() {
    with_pools(two_nodes(3 * GIB), |world| {
        let done = world.pools.resize(world.pages, Size1G, BOTH, 9);
        assert_eq!(done.stopped, Some(Stopped::OutOfMemory));
        assert!((3..=5).contains(&done.after), "{done:?}");
        world.check();
        assert_eq!(world.pools.resize(world.pages, Size1G, BOTH, 1).after, 1);
    });
}

#[test]
fn a_gigabyte_becomes_small_pages_and_is_put_together_again() {
    with_pools(two_nodes(3 * GIB), |world| {
        let _ = world.pools.resize(world.pages, Size1G, BOTH, 2);
        let done = world.pools.demote(world.pages, BOTH, 5);
        assert_eq!((done.done, done.wanted, done.stopped), (2, 5, Some(Stopped::OutOfMemory)));
        assert_eq!(
            (world.info(Size1G).total, world.info(Size2M).total, world.info(Size2M).free),
            (0, 1024, 1024)
        );
        world.check();
        // One of its parts is in use: that page stays as it is.
        let used = world.pools.take(world.pages, Size2M, NodeSet::ALL, false).unwrap();
        assert_eq!(world.pools.promote(world.pages, BOTH, 2).done, 1);
        assert_eq!((world.info(Size1G).free, world.info(Size2M).total), (1, 512));
        world.check();
        world.pools.give_raw(world.pages, Size2M, used, false);
        assert_eq!(world.pools.promote(world.pages, BOTH, 1).stopped, None);
        world.check();
        // Reserved pages are neither demoted nor promoted.
        world.pools.reserve(world.pages, Size1G, 1).unwrap();
        assert_eq!(world.pools.demote(world.pages, BOTH, 2).done, 1);
        world.pools.reserve(world.pages, Size2M, 1).unwrap();
        assert_eq!(world.pools.promote(world.pages, BOTH, 1).done, 0);
        world.pools.unreserve(world.pages, Size2M, 1);
        world.pools.unreserve(world.pages, Size1G, 1);
    });
}

/// However many pages block a promotion, each 1 GiB is checked once in a request.
#[test]
fn what_cannot_be_put_together_is_looked_at_once() {
    with_pools(two_nodes(4 * GIB), |world| {
        let all = world.pools.resize(world.pages, Size1G, BOTH, 8).after;
        assert!(all >= 5, "{all}");
        assert_eq!(world.pools.demote(world.pages, BOTH, all).done, all);
        let take = || world.pools.take(world.pages, Size2M, BOTH, false).unwrap();
        let mut taken: Vec<Frame> = (0..512 * all).map(|_| take()).collect();
        taken.sort_unstable();
        // In all but the last one the middle part is in use.
        let used: Vec<Frame> = taken.chunks(512).rev().skip(1).map(|parts| parts[256]).collect();
        let give = |frame| world.pools.give_raw(world.pages, Size2M, frame, false);
        taken.into_iter().rev().filter(|frame| !used.contains(frame)).for_each(give);
        // The last one is on the other node.
        assert_eq!(world.pools.promote(world.pages, NodeSet::one(0), 1).done, 0);
        let before = world.pages.lists().stat(Stat::HugetlbLock);
        let done = world.pools.promote(world.pages, BOTH, 2);
        assert_eq!(world.pages.lists().stat(Stat::HugetlbLock) - before, all + 1);
        assert_eq!((done.done, done.stopped), (1, Some(Stopped::OutOfMemory)));
        world.pools.validate(world.pages).unwrap();
        used.into_iter().for_each(give);
        assert_eq!(world.pools.promote(world.pages, BOTH, all).done, all - 1);
    });
}

/// The 2 MiB pages of a 1 GiB on the border of two nodes belong to two pools.
#[test]
fn parts_of_two_nodes_stay_apart() {
    let range = |node: u8, start: u64, end: u64| {
        MemoryRange::new(start * GIB / 2, (end - start) * GIB / 2).on_node(node)
    };
    // Tables stand at the ends of other ranges.
    let ranges =
        vec![range(0, 0, 2), range(1, 2, 4), range(0, 4, 5), range(1, 5, 7), range(0, 7, 8), range(1, 8, 10)];
    let config = HostedConfig { ranges, ..two_nodes(GIB) };
    with_pools(config, |world| {
        let all = world.pools.resize(world.pages, Size2M, BOTH, 2560).after;
        let parts = (0..512).map(|at| Frame(2 * Order::GIGANTIC.frames() + at * 512));
        assert!(parts.clone().all(|part| world.pages.frames().is_huge(part, Order::BLOCK)));
        assert_eq!(parts.filter(|&part| world.pages.store().node_of_frame(part) == 1).count(), 256);
        let done = world.pools.promote(world.pages, BOTH, 4);
        assert_eq!((done.done, world.info(Size2M).total), (1, all - 512));
    });
}

#[test]
fn several_cpus_grow_and_shrink_one_pool_together() {
    let machine = two_nodes(512 * MIB).build().unwrap();
    let make = || {
        let ranges = testkit::ranges_of(&machine);
        hosted::raw::page_allocator(&machine, &ranges, Default::default()).unwrap()
    };
    let pages = machine.run_on(CpuId(0), make);
    let pools = machine.run_on(CpuId(0), || quire::hugetlb::HugePools::new(&pages).unwrap());
    for _ in 0..100 {
        for wanted in [300, 17, 450, 0] {
            // The barrier starts both at once: a pool grows in less time than a thread takes to start.
            let start = std::sync::Barrier::new(2);
            machine.spawn_cpus(2, |_| {
                start.wait();
                let _ = pools.resize(&pages, Size2M, BOTH, wanted);
            });
            let info = machine.run_on(CpuId(0), || {
                pools.validate(&pages).unwrap();
                pages.validate().unwrap();
                pools.info(&pages, Size2M)
            });
            assert_eq!((info.total, info.free), (wanted, wanted));
        }
    }
}

/// A pool runs out of memory as another CPU makes it larger than wanted: then no page is missing.
#[test]
fn a_pool_that_another_cpu_made_larger_wants_no_more() {
    let machine = HostedConfig::new(32 << 20).with_cpus(2).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
        let (pages, pools) = (manager.pages(), manager.huge_pools());
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let (mut round, mut calls, mut over) = (0, 0, 0);
        while round <= calls {
            let mut blocks: Vec<Frame> =
                std::iter::from_fn(|| pages.alloc_raw(gfp, Order::BLOCK).ok()).collect();
            let rest = blocks.split_off(6);
            pages.free_raw(blocks.pop().unwrap(), Order::BLOCK).unwrap();
            machine.spawn_cpus(2, |_| pages.lists().drain_local());
            let grow = || manager.resize_huge(Size2M, NodeSet::ALL, 2);
            let grow_more = || {
                blocks.iter().for_each(|&block| pages.free_raw(block, Order::BLOCK).unwrap());
                pages.lists().drain_local();
                pools.resize(pages, Size2M, NodeSet::ALL, 4).after
            };
            let held = held_up(&machine, InterruptPlan::Nth(round), PATIENCE, grow, grow_more);
            over += u64::from(held.first.after > 2);
            (round, calls) = (round + 1, held.calls);
            pools.validate(pages).unwrap();
            let _ = pools.resize(pages, Size2M, NodeSet::ALL, 0);
            rest.iter().for_each(|&block| pages.free_raw(block, Order::BLOCK).unwrap());
            machine.spawn_cpus(2, |_| pages.lists().drain_local());
        }
        println!("{round} moments, too large at {over}");
        assert!(over > 0);
    });
}
