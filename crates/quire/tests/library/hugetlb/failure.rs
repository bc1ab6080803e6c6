//! Frames that go bad in free memory and in pools: each is lost, and nothing else.

use hosted::raw::{RawPages, RawPools};
use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError};
use quire::hugetlb::HugeSize::{self, Size1G, Size2M};
use quire::hugetlb::{HugeFailure, Stopped};
use quire::manager::Config;
use quire::memmap::BlockState;
use quire::page_alloc::{Gfp, NodeSet, Verdict};

use crate::hugetlb::support::{BOTH, GIB, MIB, World, two_nodes, with_pools};
use testkit::{held_up, order, ranges_of, seed};

/// A frame goes bad, and the pools are told.
fn fail(world: &World<'_, '_>, frame: Frame) -> Result<HugeFailure, Verdict> {
    match world.pages.condemn(frame) {
        Verdict::Huge => Ok(world.pools.memory_failure(world.pages, frame)),
        other => Err(other),
    }
}

/// Every free frame, by allocating and freeing all.
fn all_frames(world: &World<'_, '_>) -> HashSet<Frame> {
    let mut all = Vec::new();
    let gfp = Gfp { urgency: quire::page_alloc::Urgency::Reserve, ..Gfp::USER };
    while let Ok(frame) = world.pages.alloc_raw(gfp, Order::FRAME) {
        all.push(frame);
    }
    all.iter().for_each(|&frame| world.pages.free_raw(frame, Order::FRAME).unwrap());
    world.pages.lists().drain_all();
    all.into_iter().collect()
}

#[test]
fn a_free_frame_is_lost_wherever_it_is() {
    with_pools(two_nodes(32 * MIB), |world| {
        let pages = world.pages;
        let free = pages.memory_info().available();
        // In a whole block, at its start and in its middle; in a block in small pieces; on a list; known to
        // be zero.
        let listed = pages.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        let other = pages.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        let whole = Frame(512 * 9);
        pages.free_raw(listed, Order::FRAME).unwrap();
        let near = Frame(listed.block().first_frame().0 + 500);
        for frame in [whole, Frame(512 * 10 + 77), listed, near] {
            assert_eq!(fail(world, frame), Err(Verdict::Lost), "{frame:?}");
            assert_eq!(fail(world, frame), Err(Verdict::Already), "{frame:?}");
            assert!(pages.frames().is_bad(frame));
            assert_eq!(pages.free_raw(frame, Order::FRAME), Err(FreeError::InUse));
        }
        assert_eq!(fail(world, Frame(512 * 9 + 1)), Err(Verdict::Lost), "another of the same block");
        assert_eq!(fail(world, other), Err(Verdict::Busy), "it is in use");
        assert_eq!(fail(world, Frame(0)), Err(Verdict::Unrecoverable), "the manager's tables");
        assert_eq!(fail(world, Frame(1 << 30)), Err(Verdict::NotMemory));
        pages.free_raw(other, Order::FRAME).unwrap();
        assert_eq!(pages.frames().bad_frames(), 5);
        pages.validate().unwrap();
        let all = all_frames(world);
        assert!(![whole, listed, near, Frame(512 * 9 + 1)].iter().any(|frame| all.contains(frame)));
        // Each other frame of their blocks can be allocated.
        for block in [9, 10] {
            let there = all.iter().filter(|frame| frame.block().0 == block).count();
            assert_eq!(there, 512 - 2 + (block as usize - 9));
        }
        assert!(pages.memory_info().available() >= free - 5);
        world.check();
    });
}

#[test]
fn a_free_page_leaves_its_pool_but_for_the_bad_frames() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let _ = pools.resize(pages, Size2M, BOTH, 10);
        let page = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        pools.give_raw(pages, Size2M, page, false);
        assert_eq!(fail(world, page.add(77)), Ok(HugeFailure::Dissolved));
        assert_eq!((world.info(Size2M).total, world.info(Size2M).free), (9, 9));
        world.check();
        assert_eq!(fail(world, page.add(77)), Err(Verdict::Already));
        assert_eq!(fail(world, page.add(78)), Err(Verdict::Lost), "it is free memory now");
        assert!(all_frames(world).iter().filter(|frame| frame.block() == page.block()).count() == 510);
        // Growing does not allocate it again.
        let grown = pools.resize(pages, Size2M, BOTH, 1000);
        assert_eq!(grown.stopped, Some(Stopped::OutOfMemory));
        pools.validate(pages).unwrap();
        assert!(!pages.frames().is_huge(page, Order::BLOCK));
    });
}

#[test]
fn a_used_page_is_isolated_when_its_user_goes() {
    with_pools(two_nodes(64 * MIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let _ = pools.resize(pages, Size2M, BOTH, 4);
        let page = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
        for at in [0, 3, 511] {
            assert_eq!(fail(world, page.add(at)), Ok(HugeFailure::InUse));
            assert_eq!(fail(world, page.add(at)), Err(Verdict::Already));
        }
        assert_eq!((world.info(Size2M).total, world.info(Size2M).free), (4, 3));
        pools.give_raw(pages, Size2M, page, false);
        assert_eq!((world.info(Size2M).total, world.info(Size2M).free), (3, 3));
        world.check();
        let there = all_frames(world).iter().filter(|frame| frame.block() == page.block()).count();
        assert_eq!(there, 509);
    });
}

#[test]
fn a_promise_is_kept_by_a_surplus_page_or_refused() {
    with_pools(two_nodes(8 * MIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let all = pools.resize(pages, Size2M, BOTH, 100).after;
        pools.reserve(pages, Size2M, all).unwrap();
        let page = pools.take(pages, Size2M, NodeSet::ALL, true).unwrap();
        pools.give_raw(pages, Size2M, page, true);
        // There is no memory for a replacement.
        assert_eq!(fail(world, page.add(5)), Ok(HugeFailure::Reserved));
        pools.validate(pages).unwrap();
        let info = world.info(Size2M);
        assert_eq!((info.total, info.free, info.reserved), (all, all, all));
        let good: Vec<_> = (1..all).map(|_| pools.take(pages, Size2M, NodeSet::ALL, true).unwrap()).collect();
        assert!(!good.contains(&page));
        let refused = pools.take(pages, Size2M, NodeSet::ALL, true);
        assert_eq!(refused, Err(AllocError::OutOfMemory), "a bad page is not handed out");
        pools.validate(pages).unwrap();
        good.iter().for_each(|&frame| pools.give_raw(pages, Size2M, frame, true));
        // When the first reservation ends, the page leaves the pool.
        pools.unreserve(pages, Size2M, 1);
        let info = world.info(Size2M);
        assert_eq!((info.total, info.free, info.reserved), (all - 1, all - 1, all - 1));
        world.check();
        pools.unreserve(pages, Size2M, all - 1);
    });
}

#[test]
fn a_surplus_page_takes_the_place_of_a_promised_one() {
    with_pools(two_nodes(16 * MIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let _ = pools.resize(pages, Size2M, BOTH, 2);
        pools.reserve(pages, Size2M, 2).unwrap();
        let page = pools.take(pages, Size2M, NodeSet::ALL, true).unwrap();
        pools.give_raw(pages, Size2M, page, true);
        assert_eq!(fail(world, page), Ok(HugeFailure::Dissolved));
        let info = world.info(Size2M);
        assert_eq!((info.total, info.free, info.reserved, info.surplus), (2, 2, 2, 1));
        world.check();
        // One of two surplus pages is there, so another one may come.
        pools.set_overcommit(pages, Size2M, 2);
        pools.reserve(pages, Size2M, 1).unwrap();
        assert_eq!(world.info(Size2M).surplus, 2);
        pools.unreserve(pages, Size2M, 1);
        let taken = [(); 2].map(|()| pools.take(pages, Size2M, NodeSet::ALL, true).unwrap());
        assert!(!taken.contains(&page));
        taken.iter().for_each(|&frame| pools.give_raw(pages, Size2M, frame, false));
        assert_eq!(world.info(Size2M).total, 1, "the surplus page left");
    });
}

#[test]
fn gigantic_pages_come_apart_around_their_bad_frames() {
    with_pools(two_nodes(2 * GIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let _ = pools.resize(pages, Size1G, BOTH, 2);
        let page = pools.take(pages, Size1G, NodeSet::ALL, false).unwrap();
        for at in [0, 512 * 100 + 7, 512 * 100 + 8, 512 * 511 + 511] {
            assert_eq!(fail(world, page.add(at)), Ok(HugeFailure::InUse));
        }
        pools.give_raw(pages, Size1G, page, false);
        assert_eq!(world.info(Size1G).total, 1);
        world.check();
        // The 509 blocks without a bad frame are whole again.
        let frames: Vec<_> = (0..512u32)
            .filter(|&at| {
                let block = pages.memmap().block(page.block().add(at));
                block.state() == BlockState::Whole
            })
            .collect();
        assert_eq!(frames.len(), 509);
        assert!(![0, 100, 511].iter().any(|at| frames.contains(at)));
        // Demoted pages and their promotion.
        let other = pools.take(pages, Size1G, NodeSet::ALL, false).unwrap();
        pools.give_raw(pages, Size1G, other, false);
        assert_eq!(pools.demote(pages, BOTH, 1).done, 1);
        assert_eq!(world.info(Size2M).total, 512);
        assert_eq!(fail(world, other.add(512 * 6 + 1)), Ok(HugeFailure::Dissolved));
        assert_eq!(world.info(Size2M).total, 511);
        assert_eq!(pools.promote(pages, BOTH, 1).done, 0, "one is missing");
        world.check();
    });
}

#[test]
fn a_page_on_its_way_is_found_where_it_arrives() {
    with_pools(two_nodes(32 * MIB), |world| {
        let (pages, pools) = (world.pages, world.pools);
        // Between the page allocator and a pool.
        let folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
        let frame = folio.frame();
        assert_eq!(fail(world, frame.add(9)), Err(Verdict::Marked));
        assert_eq!(fail(world, frame.add(9)), Err(Verdict::Already));
        assert_eq!(pools.adopt(pages, Size2M, std::iter::once(folio)), 1);
        assert_eq!(world.info(Size2M).total, 0, "it did not stay");
        world.check();
        // The same for a folio that is freed to a list.
        let frame = pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        let larger = pages.alloc_raw(Gfp::USER, order(11)).unwrap();
        assert_eq!(fail(world, frame.add(511)), Err(Verdict::Marked));
        assert_eq!(fail(world, larger.add(1024)), Err(Verdict::Marked));
        pages.free_raw(frame, Order::BLOCK).unwrap();
        pages.free_raw(larger, order(11)).unwrap();
        world.check();
        let all = all_frames(world);
        assert!(!all.contains(&frame.add(511)) && !all.contains(&larger.add(1024)));
        assert!(all.contains(&larger.add(512 + 100)));
    });
}

#[test]
fn a_marked_block_goes_onto_no_list() {
    with_pools(two_nodes(4 * GIB), |world| {
        let pages = world.pages;
        let listed = pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        pages.free_raw(listed, Order::BLOCK).unwrap();
        let frame = pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        assert_eq!(frame, listed, "the list hands out what was freed last");
        assert_eq!(fail(world, frame.add(300)), Err(Verdict::Marked));
        pages.free_raw(frame, Order::BLOCK).unwrap();
        let next = pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        assert_ne!(next, frame);
        pages.free_raw(next, Order::BLOCK).unwrap();
        assert_eq!(pages.memmap().block(frame.block()).state(), BlockState::Small);
    });
}

#[test]
fn frames_go_bad_while_pools_are_resized() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_pools(two_nodes(GIB).with_cpus(2), |world| {
        let (pages, pools) = (world.pages, world.pools);
        let bad = Mutex::new(HashSet::new());
        let run = |cpu: u64| {
            let mut rng = Rng::with_seed(first.wrapping_add(cpu));
            for _ in 0..400 {
                let size: HugeSize = if rng.u32(..4) == 0 { Size1G } else { Size2M };
                match rng.u32(..6) {
                    0 | 1 => {
                        let wanted = rng.u64(..if size == Size1G { 2 } else { 400 });
                        let _ = pools.resize(pages, size, BOTH, wanted);
                    }
                    2 => {
                        let _ = (pools.demote(pages, BOTH, 1), pools.promote(pages, BOTH, 1));
                    }
                    3 => {
                        if let Ok(page) = pools.take(pages, size, NodeSet::ALL, false) {
                            pools.give_raw(pages, size, page, false);
                        }
                    }
                    _ => {
                        let frame = Frame(rng.u64(..512 * 1024 * 1024 / 4096));
                        if !matches!(
                            fail(world, frame),
                            Err(Verdict::Already | Verdict::Unrecoverable | Verdict::Busy)
                        ) {
                            assert!(bad.lock().unwrap().insert(frame), "{frame:?} is new");
                        }
                    }
                }
            }
            pages.lists().drain_local();
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| world.machine.run_on(quire::cpu::CpuId(1), || run(1)));
            run(0);
            other.join().unwrap();
        });
        let bad = bad.into_inner().unwrap();
        assert_eq!(pages.frames().bad_frames(), bad.len() as u64);
        pages.lists().drain_all();
        world.check();
        let _ = pools.resize(pages, Size2M, BOTH, 0);
        let _ = pools.resize(pages, Size1G, BOTH, 0);
        world.check();
        let all = all_frames(world);
        assert!(bad.iter().all(|frame| !all.contains(frame) && pages.frames().is_bad(*frame)));
    });
}

/// A frame is put aside while its free block joins a pool. Its pool is told of the mark: the page is not handed out.
#[test]
fn a_frame_that_joins_a_pool_while_it_is_put_aside_is_not_handed_out() {
    let scene = |moment| {
        let machine = HostedConfig::new(32 * MIB).with_cpus(2).build().expect("memory");
        machine.run_on(CpuId(0), || {
            let (config, ranges) = (Config::default(), ranges_of(&machine));
            let manager = hosted::raw::memory_manager(&machine, &ranges, &config).unwrap();
            let (pools, pages) = (manager.huge_pools(), manager.pages());
            let block = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
            let weak = block.frames().start.add(9);
            pages.free(block).unwrap();
            pages.lists().drain_all();
            let join = || _ = pools.resize(pages, Size2M, NodeSet::ALL, 100);
            let patience = Duration::from_millis(15);
            let aside = || manager.soft_offline(weak);
            let held = held_up(&machine, InterruptPlan::Nth(moment), patience, aside, join);
            assert_eq!(held.first, Ok(()), "at moment {moment} of {}", held.calls);
            let total = pools.info(pages, Size2M).total;
            let taken = (0..total).map(|_| pools.take(pages, Size2M, NodeSet::ALL, false).unwrap());
            let taken: Vec<_> = taken.collect();
            assert!(
                !taken.contains(&Frame(weak.0 / 512 * 512)),
                "at moment {moment}: {weak:?} is handed out"
            );
            taken.into_iter().for_each(|page| pools.give_raw(pages, Size2M, page, false));
            pools.validate(pages).unwrap();
            manager.validate().unwrap();
            held.calls
        })
    };
    (0..scene(u64::MAX)).for_each(|moment| _ = scene(moment));
}
