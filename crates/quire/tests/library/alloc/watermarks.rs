//! How far each kind of request may empty a zone, and what a refused request leaves untouched.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::{AllocError, HotplugError};
use quire::limits::PCP_BATCH;
use quire::manager::Config;
use quire::page_alloc::{
    AllocatorConfig, Gfp, MemoryInfo, MemoryRange, Mobility, PageAllocator, Urgency, Watermarks, ZoneInfo,
    ZoneKind,
};
use quire::stats::Stat;
use testkit::{order, ranges_of};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const RESERVE: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

type Allocator<'m> = PageAllocator<'m, Hosted>;

fn with_zones(ranges: Vec<Range>, movable_percent: u8, test: impl FnOnce(&Allocator<'_>)) {
    let machine = HostedConfig::new(MIB).with_ranges(ranges).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig { movable_percent, ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        let before = allocator.memory_info();
        test(&allocator);
        allocator.lists().drain_local();
        allocator.validate().unwrap();
        assert_eq!(allocator.memory_info(), before, "everything came back");
    });
}

fn zone(allocator: &Allocator<'_>, kind: ZoneKind) -> ZoneInfo {
    allocator.zone_info().find(|zone| zone.kind == kind).unwrap()
}

/// Free frames of a zone, with those on lists.
fn left(allocator: &Allocator<'_>, kind: ZoneKind) -> u64 {
    let zone = zone(allocator, kind);
    zone.free + zone.cached
}

fn take_all(allocator: &Allocator<'_>, gfp: Gfp, order: Order) -> Vec<Frame> {
    std::iter::from_fn(|| allocator.alloc_raw(gfp, order).ok()).collect()
}

fn give(allocator: &Allocator<'_>, order: Order, frames: &[Frame]) {
    frames.iter().for_each(|&frame| allocator.free_raw(frame, order).unwrap());
}

#[test]
fn each_urgency_stops_at_its_mark() {
    with_zones(vec![Range::new(0, 64 * MIB)], 0, |allocator| {
        let min = zone(allocator, ZoneKind::Dma32).marks.min;
        assert!(min > 200, "{min}");
        let mut live = Vec::new();
        let urgent = |urgency, mobility| Gfp { urgency, mobility, ..Gfp::KERNEL };
        for (urgency, mark) in [(Urgency::Ordinary, min), (Urgency::Atomic, min / 2), (Urgency::Reserve, 0)] {
            for mobility in Mobility::ALL {
                live.extend(take_all(allocator, urgent(urgency, mobility), Order::FRAME));
            }
            let left = left(allocator, ZoneKind::Dma32);
            assert!(left == mark, "{urgency:?}: {left} left, the mark is {mark}");
        }
        give(allocator, Order::FRAME, &live);
    });
}

/// A program that asks for as much as `MemAvailable` says gets it.
#[test]
fn what_is_available_can_be_allocated() {
    let ranges = vec![Range::new(4 * GIB - 32 * MIB, 32 * MIB), Range::new(4 * GIB, 512 * MIB)];
    for movable_percent in [0, 50] {
        let machine = HostedConfig::new(MIB).with_ranges(ranges.clone()).build().unwrap();
        machine.run_on(CpuId(0), || {
            let allocator = AllocatorConfig { movable_percent, ..AllocatorConfig::default() };
            let config = Config { allocator, ..Config::default() };
            let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).unwrap();
            let info = manager.meminfo();
            let (_, kib) = info.lines().find(|line| line.0 == "MemAvailable").unwrap();
            let frames: Vec<_> =
                (0..kib / 4).map_while(|_| manager.pages().alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
            assert_eq!(frames.len() as u64, kib / 4, "{movable_percent} % movable");
            assert!(kib / 4 > info.frames.free * 9 / 10, "{kib} KiB");
            give(manager.pages(), Order::FRAME, &frames);
        });
    }
}

#[test]
fn no_order_passes_the_mark() {
    for number in [1, 2, 3, 4, 6, 8, 9, 10] {
        with_zones(vec![Range::new(0, 64 * MIB)], 0, |allocator| {
            let order = order(number);
            let min = zone(allocator, ZoneKind::Dma32).marks.min;
            for gfp in [Gfp::USER, Gfp::ATOMIC] {
                let live = take_all(allocator, gfp, order);
                assert!(!live.is_empty());
                let mark = if gfp == Gfp::ATOMIC { min / 2 } else { min };
                let left = left(allocator, ZoneKind::Dma32);
                assert!(left >= mark, "order {number}: {left} left of {mark}");
                give(allocator, order, &live);
                let mut many = vec![Frame(0); 20_000];
                let got = allocator.alloc_bulk_raw(gfp, order, &mut many);
                let left = self::left(allocator, ZoneKind::Dma32);
                // A batch may start in one block and end in another.
                assert!(got > 0 && left >= mark, "order {number} in bulk: {left} left of {mark}");
                allocator.free_bulk_raw(order, &many[..got]).unwrap();
            }
        });
    }
}

#[test]
fn lower_zones_keep_a_share_for_those_that_need_them() {
    let ranges = vec![Range::new(4 * GIB - 32 * MIB, 32 * MIB), Range::new(4 * GIB, 512 * MIB)];
    with_zones(ranges, 50, |allocator| {
        // Half of the 544 MiB is movable, tables included.
        let (normal, movable) = (240 * MIB / 4096, 272 * MIB / 4096);
        let min = |kind| zone(allocator, kind).marks.min;
        let user = take_all(allocator, Gfp::USER, Order::FRAME);
        let near = |kind, want: u64| {
            let left = left(allocator, kind);
            assert!(left == want, "{kind:?}: {left} left, should be {want}");
        };
        near(ZoneKind::Movable, min(ZoneKind::Movable));
        near(ZoneKind::Normal, min(ZoneKind::Normal) + movable / 32);
        near(ZoneKind::Dma32, min(ZoneKind::Dma32) + (normal + movable) / 256);
        // Each kind that may go no higher takes its own part of what was kept.
        let kernel = take_all(allocator, Gfp::KERNEL, Order::FRAME);
        near(ZoneKind::Normal, min(ZoneKind::Normal));
        near(ZoneKind::Dma32, min(ZoneKind::Dma32) + normal / 256);
        let low = take_all(allocator, Gfp::DMA32, Order::FRAME);
        near(ZoneKind::Dma32, min(ZoneKind::Dma32));
        near(ZoneKind::Movable, min(ZoneKind::Movable));
        [user, kernel, low].iter().for_each(|frames| give(allocator, Order::FRAME, frames));
    });
}

/// Else each request would ask the short zone first, by the slow path.
#[test]
fn while_the_first_zone_is_short_the_next_one_serves_by_its_lists() {
    let ranges = vec![Range::new(4 * GIB - 32 * MIB, 32 * MIB), Range::new(4 * GIB, 64 * MIB)];
    with_zones(ranges, 0, |allocator| {
        let is_low = |frame: &Frame| frame.addr().0 < 4 * GIB;
        let take = || allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).unwrap();
        let mut live = vec![take()];
        while !live.last().is_some_and(is_low) {
            live.push(take());
        }
        let refills = || allocator.lists().stat(Stat::PcpRefill);
        let before = refills();
        live.extend((0..4 * PCP_BATCH + 1).map(|_| take()));
        assert!(refills() - before <= 4 * PCP_BATCH as u64 / 32, "{} refills", refills() - before);
        // A frame of the first zone is taken again when the list of the other one is empty.
        let high = live.swap_remove(0);
        give(allocator, Order::FRAME, &[high]);
        let more: Vec<_> = (0..PCP_BATCH + 1).map(|_| take()).collect();
        assert!(is_low(&more[0]) && more.contains(&high));
        [live, more].iter().for_each(|frames| give(allocator, Order::FRAME, frames));
    });
}

/// Memory that is kept for requests that can go no higher is also kept from requests that cannot wait. Only
/// the reserve is open to all of them.
#[test]
fn atomic_requests_leave_lower_zones_their_share() {
    let ranges = vec![Range::new(4 * GIB - 32 * MIB, 32 * MIB), Range::new(4 * GIB, 512 * MIB)];
    with_zones(ranges, 50, |allocator| {
        let (normal, movable) = (240 * MIB / 4096, 272 * MIB / 4096);
        let half = |kind| zone(allocator, kind).marks.min / 2;
        let atomic = |gfp| Gfp { urgency: Urgency::Atomic, ..gfp };
        let near = |kind, want: u64| {
            let left = left(allocator, kind);
            assert!(left == want, "{kind:?}: {left} left, should be {want}");
        };
        let user = take_all(allocator, atomic(Gfp::USER), Order::FRAME);
        near(ZoneKind::Movable, half(ZoneKind::Movable));
        near(ZoneKind::Normal, half(ZoneKind::Normal) + movable / 32);
        near(ZoneKind::Dma32, half(ZoneKind::Dma32) + (normal + movable) / 256);
        let kernel = take_all(allocator, Gfp::ATOMIC, Order::FRAME);
        near(ZoneKind::Normal, half(ZoneKind::Normal));
        near(ZoneKind::Dma32, half(ZoneKind::Dma32) + normal / 256);
        let low = take_all(allocator, atomic(Gfp::DMA32), Order::FRAME);
        near(ZoneKind::Dma32, half(ZoneKind::Dma32));
        let rest = take_all(allocator, RESERVE, Order::FRAME);
        assert_eq!(
            [ZoneKind::Movable, ZoneKind::Normal, ZoneKind::Dma32].map(|kind| left(allocator, kind)),
            [0; 3]
        );
        [user, kernel, low, rest].iter().for_each(|frames| give(allocator, Order::FRAME, frames));
    });
}

/// A zone with N free frames above the mark of a kind of request serves exactly N of them, one by one and in
/// bulk, and refuses the next.
#[test]
fn each_mark_is_reached_to_the_frame() {
    with_zones(vec![Range::new(0, 64 * MIB)], 0, |allocator| {
        let min = zone(allocator, ZoneKind::Dma32).marks.min;
        let mut live = take_all(allocator, RESERVE, Order::FRAME);
        for (urgency, mark) in [(Urgency::Reserve, 0), (Urgency::Atomic, min / 2), (Urgency::Ordinary, min)] {
            let gfp = Gfp { urgency, ..Gfp::USER };
            for above in [0, 1, 2, PCP_BATCH as u64, PCP_BATCH as u64 + 1] {
                allocator.lists().drain_all();
                let free = left(allocator, ZoneKind::Dma32);
                let wanted = (mark + above).checked_sub(free).expect("marks go up");
                give(allocator, Order::FRAME, &live.split_off(live.len() - wanted as usize));
                allocator.lists().drain_all();
                assert_eq!(left(allocator, ZoneKind::Dma32), mark + above);
                let taken = if above % 2 == 0 {
                    take_all(allocator, gfp, Order::FRAME)
                } else {
                    let mut many = vec![Frame(0); above as usize + 10];
                    let got = allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut many);
                    many.truncate(got);
                    many
                };
                assert_eq!(taken.len() as u64, above, "{urgency:?}");
                assert_eq!(
                    allocator.alloc_raw(gfp, Order::FRAME),
                    Err(AllocError::OutOfMemory),
                    "{urgency:?}"
                );
                live.extend(taken);
            }
        }
        give(allocator, Order::FRAME, &live);
    });
}

#[test]
fn every_zone_can_be_emptied_and_says_so() {
    let ranges = vec![Range::new(4 * GIB - 20 * MIB, 20 * MIB), Range::new(4 * GIB, 40 * MIB)];
    for number in [0, 2, 5, 9] {
        with_zones(ranges.clone(), 50, |allocator| {
            let order = order(number);
            let mut live = Vec::new();
            for kind in [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable] {
                let gfp = Gfp { zone: kind, ..RESERVE };
                live.extend(take_all(allocator, gfp, order));
                assert_eq!(allocator.alloc_raw(gfp, order), Err(AllocError::OutOfMemory), "{kind:?}");
                let left = left(allocator, kind);
                assert!(number > 0 || left == 0, "{left} left in {kind:?}");
                assert!(allocator.alloc_bulk_raw(gfp, order, &mut [Frame(0); 8]) == 0);
                allocator.validate().unwrap();
            }
            give(allocator, order, &live);
        });
    }
}

#[test]
fn a_refused_request_changes_nothing() {
    let same = |a: MemoryInfo, b: MemoryInfo| {
        assert_eq!((a.used, a.free + a.cached + a.metadata), (b.used, b.free + b.cached + b.metadata));
    };
    with_zones(vec![Range::new(0, 24 * MIB)], 0, |allocator| {
        let live = take_all(allocator, Gfp::KERNEL, Order::FRAME);
        let before = allocator.memory_info();
        for number in [0, 1, 3, 4, 8, 9, 10, 18] {
            for gfp in [Gfp::KERNEL, Gfp::USER, Gfp::DMA32, Gfp::RECLAIMABLE] {
                assert_eq!(allocator.alloc_raw(gfp, order(number)), Err(AllocError::OutOfMemory));
                let mut out = [Frame(77); 5];
                assert_eq!(allocator.alloc_bulk_raw(gfp, order(number), &mut out), 0);
                assert_eq!(out, [Frame(77); 5]);
                assert_eq!(allocator.alloc_contig_raw(gfp, 1, 1), Err(AllocError::OutOfMemory));
            }
            same(allocator.memory_info(), before);
            allocator.validate().unwrap();
        }
        give(allocator, Order::FRAME, &live);
    });
}

/// Ranges that begin or end inside a block, and zones without a single whole one.
#[test]
fn odd_zones_are_used_to_the_last_frame() {
    let start = 4 * GIB - 8 * MIB;
    for (low, high) in [(8 * MIB, 100 * 4096), (8 * MIB, 3 * MIB + 5 * 4096), (5 * MIB + 4096, 9 * 4096)] {
        let ranges = vec![Range::new(start, low), Range::new(4 * GIB, high)];
        with_zones(ranges, 0, |allocator| {
            let info = zone(allocator, ZoneKind::Normal);
            assert_eq!(info.free + info.descriptors, info.managed, "{info:?}");
            assert!(info.marks.min <= info.managed / 16 + 1, "{info:?}");
            let gfp = Gfp { zone: ZoneKind::Normal, ..RESERVE };
            let all = take_all(allocator, gfp, Order::FRAME);
            let high: Vec<u64> = all.iter().map(|frame| frame.addr().0).filter(|&at| at >= 4 * GIB).collect();
            let info = zone(allocator, ZoneKind::Normal);
            assert_eq!(high.len() as u64 + info.descriptors, info.managed, "{info:?}");
            assert_eq!(allocator.memory_info().free, 0);
            give(allocator, Order::FRAME, &all);
        });
    }
}

#[test]
fn racing_cpus_pass_the_mark_by_a_batch_each_at_most() {
    const CPUS: usize = 4;
    let machine = HostedConfig::new(48 * MIB).with_cpus(CPUS).build().unwrap();
    let new =
        || hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
    let allocator = machine.run_on(CpuId(0), new);
    let before = allocator.memory_info();
    let marks = zone(&allocator, ZoneKind::Dma32).marks;
    for (urgency, mark) in [(Urgency::Ordinary, marks.min), (Urgency::Atomic, marks.min / 2)] {
        let live = std::sync::Mutex::new(Vec::new());
        machine.spawn_cpus(CPUS, |cpu| {
            let mut rng = fastrand::Rng::with_seed(cpu.index() as u64);
            let gfp = Gfp { urgency, mobility: Mobility::ALL[cpu.index() % 3], ..Gfp::KERNEL };
            let mut own = Vec::new();
            let mut refused = 0;
            // Near the mark, another CPU takes freed frames again at once.
            while refused < 200 {
                match allocator.alloc_raw(gfp, Order::FRAME) {
                    Ok(frame) => own.push(frame),
                    Err(_) => {
                        refused += 1;
                        for _ in 0..rng.usize(..20).min(own.len()) {
                            let at = rng.usize(..own.len());
                            allocator.free_raw(own.swap_remove(at), Order::FRAME).unwrap();
                        }
                    }
                }
            }
            live.lock().unwrap().extend(own);
        });
        let left = left(&allocator, ZoneKind::Dma32);
        let slack = CPUS as u64 * PCP_BATCH as u64;
        assert!(left + slack >= mark, "{urgency:?}: {left} left, the mark is {mark}");
        allocator.validate().unwrap();
        let live = live.into_inner().unwrap();
        machine.run_on(CpuId(0), || give(&allocator, Order::FRAME, &live));
    }
    machine.spawn_cpus(CPUS, |_| allocator.lists().drain_local());
    assert_eq!(allocator.memory_info(), before);
}

/// Runs `test` with a machine that gets some memory at the start and some later, below 4 GiB and above.
fn with_later(test: impl FnOnce(&Hosted, &Allocator<'_>, [FrameRange; 2])) {
    let ranges = vec![Range::new(4 * GIB - 64 * MIB, 64 * MIB), Range::new(4 * GIB, 96 * MIB)];
    let machine = HostedConfig::new(MIB).with_ranges(ranges).with_cpus(2).build().unwrap();
    let all = ranges_of(&machine);
    let split = |range: &MemoryRange, mib: u64| {
        let at = range.frames.start.add(mib * 256);
        let part = |start: Frame, end: Frame| MemoryRange {
            frames: FrameRange::new(start, end.0 - start.0),
            ..*range
        };
        [part(range.frames.start, at), part(at, range.frames.end())]
    };
    let ([low, late_low], [high, late_high]) = (split(&all[0], 32), split(&all[1], 64));
    let config = AllocatorConfig::default();
    let later = [late_low, late_high];
    let new = || hosted::raw::page_allocator_with_later(&machine, &[low, high], &later, config).unwrap();
    let allocator = machine.run_on(CpuId(0), new);
    test(&machine, &allocator, later.map(|range| range.frames));
    machine.run_on(CpuId(0), || allocator.validate().unwrap());
}

/// The watermarks equal those of a machine that had the present memory from the start.
fn marks_follow_memory(allocator: &Allocator<'_>, of_zones: [u64; 2]) {
    let total = of_zones.iter().sum();
    assert_eq!(allocator.memory_info().total, total);
    for (kind, present) in [ZoneKind::Dma32, ZoneKind::Normal].into_iter().zip(of_zones) {
        assert_eq!(zone(allocator, kind).marks, Watermarks::for_zone(present, total), "{kind:?}");
    }
}

#[test]
fn zones_share_what_is_asked_to_stay_free() {
    with_later(|machine, allocator, [low, _]| {
        machine.run_on(CpuId(0), || {
            let (below, above) = (32 * 256, 64 * 256);
            let marks = |kind| zone(allocator, kind).marks;
            let by_rule = marks(ZoneKind::Dma32);
            assert!(allocator.min_free() >= by_rule.min + marks(ZoneKind::Normal).min);
            allocator.set_min_free(Some(1200));
            assert_eq!(allocator.min_free(), 1200);
            assert_eq!(marks(ZoneKind::Dma32), Watermarks { min: 400, low: 500, high: 600 });
            assert_eq!(marks(ZoneKind::Normal).min, 800);
            let only_low = Gfp { mobility: Mobility::Movable, ..Gfp::DMA32 };
            let live = take_all(allocator, only_low, Order::FRAME);
            assert_eq!(left(allocator, ZoneKind::Dma32), 400);
            give(allocator, Order::FRAME, &live);
            allocator.lists().drain_local();
            // It holds for memory that comes later.
            allocator.add_memory_raw(low, false).unwrap();
            let share = 1200 * (below + low.count) / (below + above + low.count);
            assert_eq!(marks(ZoneKind::Dma32).min, share);
            allocator.remove_memory(low, |_| ()).unwrap();
            allocator.set_min_free(Some(u64::MAX - 1));
            assert_eq!([marks(ZoneKind::Dma32).min, marks(ZoneKind::Normal).min], [below / 4, above / 4]);
            allocator.set_min_free(None);
            assert_eq!(marks(ZoneKind::Dma32), by_rule);
        });
    });
}

#[test]
fn marks_rise_with_added_memory_and_fall_with_removed() {
    with_later(|machine, allocator, [low, high]| {
        machine.run_on(CpuId(0), || {
            let (mut below, mut above) = (32 * 256, 64 * 256);
            marks_follow_memory(allocator, [below, above]);
            let before = zone(allocator, ZoneKind::Dma32).marks;
            allocator.add_memory_raw(low, false).unwrap();
            below += low.count;
            marks_follow_memory(allocator, [below, above]);
            let min = zone(allocator, ZoneKind::Dma32).marks.min;
            assert!(min > before.min, "{min} was {before:?}");
            // Ordinary requests respect the new marks, and the lower zone's share that is kept from requests
            // that may go higher.
            let stops_at = |gfp, want: u64| {
                let live = take_all(allocator, gfp, Order::FRAME);
                let left = left(allocator, ZoneKind::Dma32);
                assert!(left == want, "{left} left, should be {want}");
                give(allocator, Order::FRAME, &live);
                allocator.lists().drain_local();
            };
            let movable = |gfp| Gfp { mobility: Mobility::Movable, ..gfp };
            stops_at(movable(Gfp::DMA32), min);
            stops_at(movable(Gfp::KERNEL), min + above / 256);
            // More memory in one zone changes the share of the other.
            allocator.add_memory_raw(high, false).unwrap();
            above += high.count;
            marks_follow_memory(allocator, [below, above]);
            stops_at(movable(Gfp::KERNEL), zone(allocator, ZoneKind::Dma32).marks.min + above / 256);
            assert_eq!(allocator.add_memory_raw(high, false), Err(HotplugError::Present));
            marks_follow_memory(allocator, [below, above]);
            allocator.remove_memory(low, |_| ()).unwrap();
            below -= low.count;
            marks_follow_memory(allocator, [below, above]);
            allocator.remove_memory(high, |_| ()).unwrap();
            assert_eq!(zone(allocator, ZoneKind::Dma32).marks, before);
        });
    });
}

#[test]
fn marks_are_right_after_two_cpus_change_the_memory_at_once() {
    with_later(|machine, allocator, late| {
        for round in 0..200 {
            machine.spawn_cpus(2, |cpu| {
                let range = late[cpu.index()];
                // Every second round, one CPU adds memory while the other removes it.
                if round % 2 == 0 || cpu.index() == 0 {
                    allocator.add_memory_raw(range, false).unwrap();
                }
                if round % 2 == 1 || cpu.index() == 0 {
                    allocator.remove_memory(range, |_| ()).unwrap();
                }
            });
            let there = if round % 2 == 0 { late[1].count } else { 0 };
            machine.run_on(CpuId(0), || marks_follow_memory(allocator, [32 * 256, 64 * 256 + there]));
        }
    });
}
