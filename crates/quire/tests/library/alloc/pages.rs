//! The page allocator, under contract violations of its callers.

use hosted::raw::{RawCounts, RawPages};
use std::collections::BTreeMap;

use hosted::{HostedConfig, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError};
use quire::page_alloc::{AllocatorConfig, Contents, CountError, Gfp, Urgency, ZoneKind};
use quire::platform::{Context, FramePlatform};
use quire::stats::Stat;
use testkit::{order, ranges_of, seed, with_allocator};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Invariants 1 and 8.
#[test]
fn conserves_frames_through_random_orders() {
    let seed = seed(0x5eed);
    println!("QUIRE_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        let mut live: BTreeMap<u64, Order> = BTreeMap::new();
        for step in 0..60_000 {
            if rng.u32(0..100) < if step / 10_000 % 2 == 0 { 60 } else { 35 } {
                let order = order([0, 0, 0, 0, 1, 2, 3, 4, 6, 8, 9, 10][rng.usize(0..12)]);
                let gfp = [Gfp::USER, Gfp::KERNEL, Gfp::RECLAIMABLE, Gfp::ATOMIC][rng.usize(0..4)];
                let Ok(frame) = allocator.alloc_raw(gfp, order) else { continue };
                assert!(frame.is_aligned(order));
                let end = frame.0 + order.frames();
                let below = live.range(..end).next_back();
                assert!(below.is_none_or(|(start, order)| start + order.frames() <= frame.0), "overlap");
                live.insert(frame.0, order);
            } else if let Some((&frame, &order)) = live.range(rng.u64(0..20_000)..).next() {
                allocator.free_raw(Frame(frame), order).unwrap();
                live.remove(&frame);
            }
            if step % 5_000 == 0 {
                allocator.validate().unwrap();
            }
        }
        let info = allocator.memory_info();
        assert_eq!(info.used, live.values().map(|order| order.frames()).sum::<u64>(), "invariant 8");
        for (frame, order) in live {
            allocator.free_raw(Frame(frame), order).unwrap();
        }
        allocator.lists().drain_local();
        assert_eq!(allocator.memory_info(), before, "every block is whole again");
    });
}

#[test]
fn names_every_bad_free() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        for number in [0, 1, 2, 3, 5, 8, 9, 10] {
            let order = order(number);
            let frame = allocator.alloc_raw(Gfp::USER, order).unwrap();
            let wrong = testkit::order(if number == 0 { 1 } else { number - 1 });
            assert_eq!(allocator.free_raw(frame, wrong), Err(FreeError::WrongOrder), "order {number}");
            if number > 0 {
                assert_eq!(
                    allocator.free_raw(frame.add(1), Order::FRAME),
                    Err(FreeError::WrongOrder),
                    "order {number}"
                );
            }
            allocator.free_raw(frame, order).unwrap();
            assert_eq!(allocator.free_raw(frame, order), Err(FreeError::DoubleFree), "order {number}");
            allocator.lists().drain_local();
            assert_eq!(
                allocator.free_raw(frame, order),
                Err(FreeError::DoubleFree),
                "order {number}, drained"
            );
        }
        assert_eq!(allocator.free_raw(Frame(1 << 30), Order::FRAME), Err(FreeError::NotMemory));
        assert_eq!(
            allocator.free_raw(Frame(0), Order::FRAME),
            Err(FreeError::InUse),
            "the manager's own tables"
        );
    });
}

#[test]
fn out_of_memory_is_an_answer_at_every_order() {
    for number in [0, 3, 4, 8, 9, 10] {
        with_allocator(HostedConfig::new(24 * MIB), |_, allocator| {
            let before = allocator.memory_info();
            let order = order(number);
            let mut live = Vec::new();
            while let Ok(frame) = allocator.alloc_raw(Gfp::USER, order) {
                live.push(frame);
            }
            assert!(!live.is_empty());
            assert_eq!(allocator.alloc_raw(Gfp::USER, order), Err(AllocError::OutOfMemory));
            let zone = allocator.zone_info().next().unwrap();
            if number == 0 {
                assert!(zone.free + zone.cached <= zone.marks.min + 64, "{zone:?}");
                let reserve = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
                live.push(allocator.alloc_raw(reserve, order).unwrap());
            }
            live.iter().for_each(|&frame| allocator.free_raw(frame, order).unwrap());
            allocator.lists().drain_local();
            assert_eq!(allocator.memory_info(), before);
        });
    }
}

#[test]
fn bulk_fills_in_address_order_and_says_how_far() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let mut frames = vec![Frame(0); 20_000];
        let got = allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames);
        assert!(got < frames.len() && got > 6_000, "{got}");
        let frames = &frames[..got];
        let neighbours = frames.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1).count();
        assert!(neighbours > got * 9 / 10);
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut []), 0);
        let mut twice = frames.to_vec();
        twice.insert(10, frames[3]);
        assert_eq!(allocator.free_bulk_raw(Order::FRAME, &twice), Err((10, FreeError::DoubleFree)));
        assert_eq!(allocator.free_bulk_raw(Order::FRAME, &frames[10..]), Ok(()));
    });
}

#[test]
fn zones_serve_what_they_may() {
    let ranges = vec![Range::new(0, 64 * MIB), Range::new(4 * GIB, 128 * MIB)];
    let machine = HostedConfig::new(MIB).with_ranges(ranges).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig { movable_percent: 25, ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        let kinds: Vec<ZoneKind> = allocator.zone_info().map(|zone| zone.kind).collect();
        assert_eq!(kinds, [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable]);
        let counts = || {
            let stats = [Stat::PgallocDma32, Stat::PgallocNormal, Stat::PgallocMovable];
            stats.map(|stat| allocator.lists().stat(stat))
        };
        let block = |gfp| allocator.alloc_raw(gfp, Order::BLOCK).unwrap().addr().0;
        let before = counts();
        assert!(block(Gfp::DMA32) < 4 * GIB);
        assert!((4 * GIB..4 * GIB + 80 * MIB).contains(&block(Gfp::KERNEL)));
        assert!(block(Gfp::USER) >= 4 * GIB + 80 * MIB);
        assert_eq!(counts(), before.map(|count| count + 512));
        // A frame comes from a list, which took more of them.
        let frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        assert!(frame.addr().0 >= 4 * GIB + 80 * MIB);
        assert_eq!(counts()[2], before[2] + 513);
        allocator.free_raw(frame, Order::FRAME).unwrap();
        let mut spilled = false;
        while let Ok(frame) = allocator.alloc_raw(Gfp::USER, Order::BLOCK) {
            spilled |= frame.addr().0 < 4 * GIB;
        }
        assert!(spilled, "a request falls back to lower zones");
        allocator.validate().unwrap();
    });
}

#[test]
fn odd_edges_and_shared_blocks_are_used() {
    // 640 KiB and the rest of the first block, as on a PC; a range that starts and ends inside blocks.
    let ranges =
        vec![Range::new(0, 640 << 10), Range::new(MIB, 3 * MIB), Range::new(9 * MIB + 4096, 7 * MIB)];
    let machine = HostedConfig::new(MIB).with_ranges(ranges.clone()).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        allocator.validate().unwrap();
        let reserve = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        let mut live = Vec::new();
        while let Ok(frame) = allocator.alloc_raw(reserve, Order::FRAME) {
            let addr = frame.addr();
            assert!(
                ranges.iter().any(|r| addr.0 >= r.start.0 && addr.0 + 4096 <= r.end().0),
                "{frame:?} is a hole"
            );
            live.push(frame);
        }
        let info = allocator.memory_info();
        assert_eq!(info.used, live.len() as u64);
        assert_eq!(info.used + info.metadata + info.free + info.cached, info.total, "invariant 8");
        assert!(info.used * 10 > info.total * 9, "{info:?}");
        live.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        allocator.lists().drain_local();
        allocator.validate().unwrap();
    });
}

#[test]
fn a_megabyte_is_a_machine() {
    with_allocator(HostedConfig::new(MIB), |_, allocator| {
        let frame = allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).unwrap();
        allocator.free_raw(frame, Order::FRAME).unwrap();
        assert!(allocator.memory_info().metadata < 64, "{:?}", allocator.memory_info());
    });
}

#[test]
fn a_terabyte_costs_little() {
    let machine = HostedConfig::new(1 << 40).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let info = allocator.memory_info();
        assert!(info.metadata * 1000 < info.total, "{info:?} is 0.1 % or more");
        let gigantic = allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap();
        assert!(gigantic.is_aligned(Order::GIGANTIC));
        allocator.free_raw(gigantic, Order::GIGANTIC).unwrap();
    });
}

/// Invariant 5.
#[test]
fn counts_free_exactly_at_zero() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        let folio = allocator.alloc_raw(Gfp::USER, order(4)).unwrap();
        let run = FrameRange::folio(folio, order(4));
        let mut counter = allocator.counts().counter();
        counter.map(run).unwrap();
        counter.map(FrameRange::new(folio.add(3), 2)).unwrap();
        assert_eq!(counter.unmap_raw(FrameRange::new(folio, 4)), 3);
        drop(counter);
        assert_eq!(allocator.counts().mapcount(folio.add(3)), 1);
        assert_eq!(allocator.counts().mapcount(folio.add(4)), 2);
        assert_eq!(
            allocator.free_raw(folio.add(3), Order::FRAME),
            Ok(()).and(Err(FreeError::InUse)),
            "it is mapped"
        );
        let mut counter = allocator.counts().counter();
        assert_eq!(counter.unmap_raw(FrameRange::new(folio.add(3), 13)), 12);
        assert_eq!(counter.unmap_raw(FrameRange::new(folio.add(4), 1)), 1);
        drop(counter);
        allocator.validate().unwrap();
        allocator.lists().drain_local();
        assert_eq!(allocator.memory_info(), before);
    });
}

#[test]
fn held_frames_outlive_their_leaves() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let folio = allocator.alloc_raw(Gfp::USER, order(2)).unwrap();
        let run = FrameRange::folio(folio, order(2));
        allocator.frames().hold(run);
        allocator.counts().counter().map(run).unwrap();
        assert_eq!(allocator.counts().counter().unmap_raw(run), 0);
        assert_eq!(allocator.free_raw(folio, order(2)), Err(FreeError::InUse));
        allocator.counts().counter().map(FrameRange::new(folio, 1)).unwrap();
        assert_eq!(allocator.release_raw(run), 3);
        assert_eq!(allocator.counts().counter().unmap_raw(FrameRange::new(folio, 1)), 1);
    });
}

#[test]
fn a_whole_folio_counts_leaves_of_every_size() {
    with_allocator(HostedConfig::new(2 * GIB + 64 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        let huge = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        let run = FrameRange::folio(huge, Order::BLOCK);
        allocator.counts().counter().map_large(huge, PageSize::Size2M);
        let refused = allocator.counts().counter().map(run);
        assert_eq!(refused, Err(CountError::Prepare { done: 0, at: huge }));
        allocator.counts().prepare_counts(huge).unwrap();
        allocator.counts().counter().map(run).unwrap();
        assert_eq!(allocator.counts().mapcount(huge.add(77)), 2);
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(huge, PageSize::Size2M, Contents::Unknown),
            0
        );
        assert_eq!(allocator.counts().counter().unmap_raw(FrameRange::new(huge, 511)), 0);
        assert_eq!(allocator.counts().counter().unmap_raw(FrameRange::new(huge.add(511), 1)), 512);
        let gigantic = allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap();
        let mut counter = allocator.counts().counter();
        counter.map_large(gigantic, PageSize::Size1G);
        counter.map_large(gigantic.add(512), PageSize::Size2M);
        drop(counter);
        assert_eq!(allocator.counts().mapcount(gigantic.add(513)), 2);
        assert_eq!(allocator.counts().mapcount(gigantic.add(5)), 1);
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(gigantic, PageSize::Size1G, Contents::Unknown),
            0
        );
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(
                gigantic.add(512),
                PageSize::Size2M,
                Contents::Unknown
            ),
            1 << 18
        );
        allocator.lists().drain_local();
        assert_eq!(allocator.memory_info(), before);
    });
}

/// Invariants 5 and M3.
#[test]
fn counts_beyond_a_byte_stay_exact() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        for order in [Order::FRAME, Order::BLOCK] {
            let folio = allocator.alloc_raw(Gfp::USER, order).unwrap();
            let run = FrameRange::new(folio, 1);
            for _ in 0..1000 {
                while let Err(CountError::Prepare { at, .. }) = allocator.counts().counter().map(run) {
                    allocator.counts().prepare_counts(at).unwrap();
                }
            }
            assert_eq!(allocator.counts().mapcount(folio), 1000);
            for _ in 0..999 {
                assert_eq!(allocator.counts().counter().unmap_raw(run), 0);
            }
            assert_eq!(allocator.counts().counter().unmap_raw(run), order.frames());
        }
        allocator.lists().drain_local();
        allocator.validate().unwrap();
        assert_eq!(allocator.memory_info(), before, "the widened lanes came back as well");
    });
}

#[test]
fn nested_contexts_wait_for_nothing_and_lose_nothing() {
    with_allocator(HostedConfig::new(32 * MIB), |machine, allocator| {
        let before = allocator.memory_info();
        let mut live = Vec::new();
        for _ in 0..100 {
            live.push(allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).unwrap());
            machine.interrupt(Context::HardInterrupt, || {
                assert_eq!(machine.context(), Context::HardInterrupt);
                live.push(allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME).unwrap());
                allocator.free_raw(live.swap_remove(0), Order::FRAME).unwrap();
            });
        }
        live.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        allocator.lists().drain_local();
        assert_eq!(allocator.memory_info(), before);
    });
}

#[test]
fn threads_share_blocks_without_losing_frames() {
    let seed = seed(99);
    println!("QUIRE_SEED={seed}");
    let machine = HostedConfig::new(128 * MIB).with_cpus(4).build().unwrap();
    let allocator = machine
        .run_on(CpuId(0), || {
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default())
        })
        .unwrap();
    let before = allocator.memory_info();
    let (send, receive): (Vec<_>, Vec<_>) =
        (0..4).map(|_| std::sync::mpsc::channel::<(Frame, Order)>()).unzip();
    let receive: Vec<_> = receive.into_iter().map(std::sync::Mutex::new).collect();
    machine.spawn_cpus(4, |cpu| {
        let mut rng = fastrand::Rng::with_seed(seed + u64::from(cpu.0));
        let inbox = receive[cpu.index()].lock().unwrap();
        for _ in 0..40_000 {
            let order = order([0, 0, 0, 2, 4, 9][rng.usize(0..6)]);
            if let Ok(frame) = allocator.alloc_raw(Gfp::USER, order) {
                // Most frames are freed by another CPU than the one that allocated them.
                send[rng.usize(0..4)].send((frame, order)).unwrap();
            }
            for (frame, order) in inbox.try_iter().take(3) {
                allocator.free_raw(frame, order).unwrap();
            }
        }
    });
    machine.spawn_cpus(4, |cpu| {
        let inbox = receive[cpu.index()].lock().unwrap();
        inbox.try_iter().for_each(|(frame, order)| allocator.free_raw(frame, order).unwrap());
        allocator.lists().drain_local();
    });
    allocator.validate().unwrap();
    assert_eq!(allocator.memory_info(), before);
}

#[test]
fn the_common_path_takes_no_lock() {
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        let frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        allocator.free_raw(frame, Order::FRAME).unwrap();
        let locks = allocator.lists().stat(Stat::BlockLock);
        for _ in 0..1000 {
            let frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
            allocator.free_raw(frame, Order::FRAME).unwrap();
        }
        assert_eq!(allocator.lists().stat(Stat::BlockLock), locks);
    });
}
