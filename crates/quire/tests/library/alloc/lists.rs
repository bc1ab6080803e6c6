//! Per-CPU lists: which contexts use them, what they keep, and how they are emptied.

use hosted::raw::RawPages;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError};
use quire::limits::{DRAIN_MAGAZINES, MAGAZINE_FRAMES, VISIT_BLOCKS};
use quire::page_alloc::{AllocatorConfig, Drained, Gfp, ListGuard, PageAllocator, Urgency};
use quire::platform::{Context, FramePlatform};
use quire::stats::Stat;
use testkit::{order, ranges_of, with_allocator};

const MIB: u64 = 1 << 20;
const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
const GUARDS: [ListGuard; 3] = [ListGuard::Reentry, ListGuard::IrqOff, ListGuard::TaskOnly];

fn allocator(machine: &Hosted, lists: ListGuard) -> PageAllocator<'_, Hosted> {
    let config = AllocatorConfig { lists, ..AllocatorConfig::default() };
    hosted::raw::page_allocator(machine, &ranges_of(machine), config).unwrap()
}

fn take(allocator: &PageAllocator<'_, Hosted>, count: usize) -> Vec<Frame> {
    (0..count).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()).collect()
}

fn give(allocator: &PageAllocator<'_, Hosted>, frames: &[Frame]) {
    frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
}

/// Invariants G1, G2, G3 and G5: frames that are freed by the thousand are parked in magazines inside
/// themselves, and all are allocated again.
#[test]
fn magazines_keep_what_overflows_and_give_it_back() {
    for guard in GUARDS {
        let machine = HostedConfig::new(512 * MIB).build().unwrap();
        machine.run_on(CpuId(0), || {
            let allocator = allocator(&machine, guard);
            let before = allocator.memory_info();
            for _ in 0..4 {
                let frames = take(&allocator, 6000);
                // The owner of a frame writes to it: the links of a magazine must not outlive the magazine.
                for &frame in &frames {
                    // SAFETY: H1: the frame was just handed out to this test alone.
                    unsafe { machine.direct_map(frame.addr()).write_bytes(0xff, 4096) };
                }
                let mut sorted = frames.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), 6000, "no frame is handed out twice");
                give(&allocator, &frames);
                allocator.validate().unwrap();
                for &frame in frames.iter().step_by(97) {
                    assert_eq!(allocator.free_raw(frame, Order::FRAME), Err(FreeError::DoubleFree));
                }
            }
            let info = allocator.memory_info();
            assert!(info.cached > 4096, "{guard:?}: lists have grown to what is used: {}", info.cached);
            let metadata = info.metadata - before.metadata;
            assert_eq!(info.available() + metadata, before.available(), "cached frames are available");
            assert_eq!(allocator.lists().stat(Stat::Pgfree), 24000);
            let refills = allocator.lists().stat(Stat::PcpRefill);
            let frames = take(&allocator, 6000);
            assert_eq!(
                allocator.lists().stat(Stat::PcpRefill),
                refills,
                "{guard:?}: the store is not asked any more"
            );
            give(&allocator, &frames);
            allocator.lists().drain_all();
            assert_eq!(allocator.memory_info(), before);
            allocator.validate().unwrap();
        });
    }
}

/// The same where arrays have a few slots each: magazines are started, parked, loaded, handed out to the last
/// folio, and drained.
#[test]
fn magazines_of_a_few_folios_come_and_go() {
    with_allocator(HostedConfig::new(8 * MIB), |_, allocator| {
        let before = allocator.memory_info();
        for count in [20, 60, 120, 120, 120] {
            let frames = take(allocator, count);
            assert_eq!(frames.iter().collect::<std::collections::BTreeSet<_>>().len(), count);
            give(allocator, &frames);
            allocator.validate().unwrap();
        }
        assert!(allocator.memory_info().cached > 60, "some are parked");
        allocator.lists().drain_all();
        assert_eq!(allocator.memory_info(), before);
        assert_eq!(
            (allocator.lists().stat(Stat::Pgfree), allocator.lists().stat(Stat::PgallocNormal)),
            (440, 0)
        );
    });
}

#[test]
fn idle_lists_shrink_by_steps_of_bounded_size() {
    with_allocator(HostedConfig::new(512 * MIB), |_, allocator| {
        for _ in 0..4 {
            let frames = take(allocator, 6000);
            give(allocator, &frames);
        }
        let cached = allocator.memory_info().cached;
        let bound = u64::from(quire::limits::PCP_AGE_MAGAZINES) * 256;
        let mut given = 0;
        for _ in 0..200 {
            let step = allocator.lists().age_lists();
            assert!(step <= bound, "{step} frames in one call");
            given += step;
        }
        assert_eq!(allocator.memory_info().cached, cached - given);
        assert!(allocator.memory_info().cached <= 512, "no more than the array is left");
    });
}

/// An allocation fails only when the lists of all other CPUs are empty too.
#[test]
fn memory_is_not_out_while_another_cpu_keeps_a_frame() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(3).build().unwrap();
    let allocator = machine.run_on(CpuId(0), || allocator(&machine, ListGuard::Reentry));
    for cpu in 1..3 {
        machine.run_on(CpuId(cpu), || {
            for size in [0, 1, 2, 3, 9] {
                let folios: Vec<_> =
                    (0..40).filter_map(|_| allocator.alloc_raw(ALL, order(size)).ok()).collect();
                folios.iter().for_each(|&folio| allocator.free_raw(folio, order(size)).unwrap());
            }
        });
    }
    machine.run_on(CpuId(0), || {
        let mut frames = Vec::new();
        while let Ok(frame) = allocator.alloc_raw(ALL, Order::FRAME) {
            frames.push(frame);
        }
        let info = allocator.memory_info();
        assert_eq!((info.free, info.cached), (0, 0));
        assert_eq!(info.used, frames.len() as u64);
        give(&allocator, &frames);
        allocator.lists().drain_all();
        allocator.validate().unwrap();
    });
}

/// A CPU that found no memory remembers which CPUs' lists are empty. A folio that comes onto any list of any
/// CPU from then on, by a task or an interrupt, serves the next request.
#[test]
fn a_refusal_is_not_repeated_once_a_folio_is_on_a_list() {
    for (guard, cpu, size, call) in GUARDS.iter().flat_map(|guard| {
        (0..2).flat_map(move |cpu| (0..12).map(move |at| (guard, cpu, [0, 2, 9][at % 3], at as u64 / 3)))
    }) {
        let machine = HostedConfig::new(64 * MIB).with_cpus(3).build().unwrap();
        let allocator = machine.run_on(CpuId(0), || allocator(&machine, *guard));
        let folios: Vec<_> = machine
            .run_on(CpuId(cpu), || (0..4).map(|_| allocator.alloc_raw(ALL, order(size)).unwrap()).collect());
        let exhaust = || {
            machine.run_on(CpuId(0), || {
                let frames: Vec<_> =
                    std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()).collect();
                assert_eq!(allocator.alloc_raw(ALL, Order::FRAME), Err(AllocError::OutOfMemory));
                let info = allocator.memory_info();
                assert_eq!(
                    (info.free, info.cached),
                    (0, 0),
                    "{guard:?}, CPU {cpu}, order {size}, call {call}"
                );
                frames
            })
        };
        let mut frames = exhaust();
        // Twice: the first folios reopen the lists, on which the second ones find no slow path.
        for pair in folios.chunks(2) {
            machine.run_on(CpuId(cpu), || {
                let free = |folio| allocator.free_raw(folio, order(size)).unwrap();
                let (plan, context) = (InterruptPlan::Nth(call), Context::HardInterrupt);
                let ran = machine.interrupt_at_calls(plan, context, || free(pair[0]), || free(pair[1]));
                if ran.delivered == 0 {
                    free(pair[0]);
                }
            });
            let got = exhaust();
            assert_eq!(got.len(), 2 << size, "{guard:?}, CPU {cpu}, order {size}, call {call}");
            frames.extend(got);
        }
        machine.run_on(CpuId(0), || {
            give(&allocator, &frames);
            allocator.lists().drain_all();
            allocator.validate().unwrap();
        });
    }
}

/// Folios that interrupts left on lists of their own are found as well, by a task of their CPU.
#[test]
fn memory_is_not_out_while_an_interrupts_list_has_a_frame() {
    let machine = HostedConfig::new(64 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator = allocator(&machine, ListGuard::Reentry);
        let mut frames = take(&allocator, 40);
        let given = frames.split_off(10);
        let last = frames.pop().unwrap();
        // A checking machine is told of a freed frame while the lease is taken.
        let free_all = || give(&allocator, &given);
        let ran = machine.interrupt_at_calls(InterruptPlan::Nth(1), Context::HardInterrupt, free_all, || {
            allocator.free_raw(last, Order::FRAME).unwrap();
        });
        assert_eq!(ran.delivered, 1);
        let nested = allocator.lists().stat(Stat::PcpNested);
        assert!(nested > 0, "the interrupt used a further level");
        while let Ok(frame) = allocator.alloc_raw(ALL, Order::FRAME) {
            frames.push(frame);
        }
        let info = allocator.memory_info();
        assert_eq!((info.free, info.cached), (0, 0));
        give(&allocator, &frames);
        allocator.lists().drain_all();
        allocator.validate().unwrap();
    });
}

/// Each level of interrupts has lists of its own. A drain by their CPU or by another one empties them all,
/// and so does a CPU that is out of memory.
#[test]
fn the_lists_of_every_level_are_emptied() {
    const DEPTHS: [&[Context]; 4] = [
        &[],
        &[Context::SoftInterrupt],
        &[Context::HardInterrupt],
        &[Context::SoftInterrupt, Context::HardInterrupt],
    ];
    for (contexts, call) in DEPTHS.into_iter().flat_map(|contexts| (0..8).map(move |call| (contexts, call))) {
        for way in ["its own drain", "another's drain", "no memory"] {
            let machine = HostedConfig::new(64 * MIB).with_cpus(2).build().unwrap();
            let allocator = machine.run_on(CpuId(0), || allocator(&machine, ListGuard::Reentry));
            let before = machine.run_on(CpuId(0), || allocator.memory_info());
            machine.run_on(CpuId(0), || {
                let mut frames = take(&allocator, 90);
                on_levels(&machine, &allocator, (contexts, [1, call]), &mut frames);
                if way == "no memory" {
                    // The last frames are on the lists of interrupts only.
                    frames.extend(std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()));
                    let info = allocator.memory_info();
                    assert_eq!((info.free, info.cached), (0, 0), "{contexts:?} at call {call}");
                }
                give(&allocator, &frames);
            });
            machine.run_on(CpuId(u32::from(way == "another's drain")), || {
                if way == "its own drain" {
                    allocator.lists().drain_local()
                } else {
                    allocator.lists().drain_all()
                }
                allocator.validate().unwrap();
                assert_eq!(allocator.memory_info(), before, "{contexts:?} at call {call}, {way}");
            });
        }
    }
}

/// Frees one of the frames. At the call of the platform with the first number, an interrupt frees 29 more; at
/// the call with the second number, another interrupt does so on top of it, and so on. At some of these calls
/// the lease of a level is taken.
fn on_levels(
    machine: &Hosted,
    allocator: &PageAllocator<'_, Hosted>,
    (contexts, calls): (&[Context], [u64; 2]),
    frames: &mut Vec<Frame>,
) {
    let last = frames.pop().unwrap();
    let free_last = || allocator.free_raw(last, Order::FRAME).unwrap();
    let Some((&context, above)) = contexts.split_first() else { return free_last() };
    let given = frames.split_off(frames.len() - 29);
    let mut given = Some(given);
    let mut free_all = || {
        given.take().iter().for_each(|given| give(allocator, given));
        on_levels(machine, allocator, (above, [calls[1]; 2]), frames);
    };
    let ran = machine.interrupt_at_calls(InterruptPlan::Nth(calls[0]), context, &mut free_all, free_last);
    if ran.delivered == 0 {
        free_all();
    }
}

/// A CPU that goes offline leaves full lists behind, which any other CPU may empty.
#[test]
fn a_cpu_that_went_offline_is_drained_by_another() {
    let machine = HostedConfig::new(256 * MIB).with_cpus(2).build().unwrap();
    let allocator = machine.run_on(CpuId(0), || allocator(&machine, ListGuard::Reentry));
    let before = machine.run_on(CpuId(0), || allocator.memory_info());
    machine.run_on(CpuId(1), || {
        for _ in 0..3 {
            let frames = take(&allocator, 3000);
            give(&allocator, &frames);
        }
    });
    machine.run_on(CpuId(0), || {
        assert!(allocator.memory_info().cached > 1000);
        while allocator.lists().drain_cpu(CpuId(1)).more {}
        allocator.lists().drain_all();
        assert_eq!(allocator.memory_info(), before);
        allocator.validate().unwrap();
    });
}

/// Invariant 7: one call that makes room on a list, or fills one, visits a bounded number of blocks, even
/// where each folio is of another block.
#[test]
fn a_call_visits_a_bounded_number_of_blocks() {
    with_allocator(HostedConfig::new(512 * MIB), |_, allocator| {
        let mut frames = vec![Frame(0); 60_000];
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames), frames.len());
        // One frame of each block in turn: about ten of each block are freed. For the fills two of each are,
        // so that one fill visits many blocks.
        frames.sort_unstable_by_key(|frame| (frame.0 % 512, frame.0));
        let (freed, filled) = (1100, 230);
        let mut most = [0; 2];
        let mut visits = |which: usize, call: &mut dyn FnMut()| {
            let before = allocator.lists().stat(Stat::BlockLock);
            call();
            most[which] = most[which].max(allocator.lists().stat(Stat::BlockLock) - before);
        };
        for &frame in &frames[..freed] {
            visits(0, &mut || allocator.free_raw(frame, Order::FRAME).unwrap());
        }
        allocator.lists().drain_all();
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames[..freed]), freed);
        frames.sort_unstable_by_key(|frame| (frame.0 % 512, frame.0));
        allocator.free_bulk_raw(Order::FRAME, &frames[..filled]).unwrap();
        for frame in &mut frames[..filled] {
            visits(1, &mut || *frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap());
        }
        assert_eq!(most, [VISIT_BLOCKS as u64; 2], "to make room, to fill");
        allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        allocator.lists().drain_all();
        allocator.validate().unwrap();
    });
}

/// Invariant 7: one call of a drain does a bounded amount of work and says that there is more.
#[test]
fn a_drain_is_bounded_and_says_that_there_is_more() {
    with_allocator(HostedConfig::new(2048 * MIB), |_, allocator| {
        let count = 3 * DRAIN_MAGAZINES as usize * MAGAZINE_FRAMES / 2;
        for _ in 0..10 {
            let frames = take(allocator, count);
            give(allocator, &frames);
        }
        let cached = allocator.memory_info().cached;
        assert!(cached > u64::from(DRAIN_MAGAZINES) * MAGAZINE_FRAMES as u64, "{cached}");
        let first = allocator.lists().drain_cpu(CpuId(0));
        assert_eq!(
            first,
            Drained { frames: u64::from(DRAIN_MAGAZINES) * MAGAZINE_FRAMES as u64, more: true }
        );
        allocator.validate().unwrap();
        let (mut frames, mut more) = (first.frames, true);
        while more {
            let next = allocator.lists().drain_cpu(CpuId(0));
            (frames, more) = (frames + next.frames, next.more);
        }
        assert_eq!(frames, cached);
        assert_eq!(allocator.memory_info().cached, 0);
    });
}

/// Invariant G4 and the lease: one CPU drains another's lists again and again while their owner uses them.
#[test]
fn draining_a_busy_cpu_loses_nothing() {
    for guard in GUARDS {
        let machine = HostedConfig::new(256 * MIB).with_cpus(2).build().unwrap();
        let allocator = machine.run_on(CpuId(0), || allocator(&machine, guard));
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        machine.spawn_cpus(2, |cpu| {
            if cpu == CpuId(0) {
                let mut random = fastrand::Rng::with_seed(7);
                let mut frames = Vec::new();
                let mut turns = 0;
                while turns < 60_000 || rounds.load(Ordering::Relaxed) < 20 {
                    turns += 1;
                    if frames.len() < 400 && random.bool() || frames.is_empty() {
                        frames.push(allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap());
                    } else {
                        let frame = frames.swap_remove(random.usize(..frames.len()));
                        allocator.free_raw(frame, Order::FRAME).unwrap();
                    }
                }
                frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
                stop.store(true, Ordering::Relaxed);
            } else {
                while !stop.load(Ordering::Relaxed) {
                    while allocator.lists().drain_cpu(CpuId(0)).more {}
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(rounds.into_inner() > 0);
        machine.run_on(CpuId(0), || {
            allocator.validate().unwrap();
            let info = allocator.memory_info();
            assert_eq!(info.used, 0, "{guard:?}: {info:?}");
        });
    }
}

/// An interrupt uses its CPU's lists while the task there is not in the allocator; the counts add up.
#[test]
fn interrupts_are_served_and_counted() {
    for guard in GUARDS {
        let machine = HostedConfig::new(64 * MIB).build().unwrap();
        machine.run_on(CpuId(0), || {
            let allocator = allocator(&machine, guard);
            let frames = take(&allocator, 100);
            give(&allocator, &frames);
            for context in [Context::SoftInterrupt, Context::HardInterrupt] {
                machine.interrupt(context, || {
                    let frame = allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME).unwrap();
                    assert_eq!(allocator.free_raw(frame, order(1)), Err(FreeError::WrongOrder));
                    allocator.free_raw(frame, Order::FRAME).unwrap();
                    assert_eq!(allocator.free_raw(frame, Order::FRAME), Err(FreeError::DoubleFree));
                    let mut bulk = [Frame(0); 16];
                    assert_eq!(allocator.alloc_bulk_raw(Gfp::ATOMIC, Order::FRAME, &mut bulk), 16);
                    allocator.free_bulk_raw(Order::FRAME, &bulk).unwrap();
                    let folio = allocator.alloc_raw(Gfp::ATOMIC, Order::BLOCK).unwrap();
                    allocator.free_raw(folio, Order::BLOCK).unwrap();
                });
            }
            let info = allocator.memory_info();
            assert_eq!(allocator.lists().stat(Stat::PcpNested), 0, "{guard:?}: none came inside");
            assert_eq!(info.used, 0, "{guard:?}: {info:?}");
            let freed = 100 + 2 * (1 + 16 + 512);
            assert_eq!(allocator.lists().stat(Stat::Pgfree), freed, "{guard:?}");
            assert_eq!(allocator.lists().stat(Stat::PgallocDma32), freed, "{guard:?}");
            allocator.validate().unwrap();
        });
    }
}

#[test]
fn bulk_fills_empty_slots_and_leaves_full_ones() {
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        let own = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        let mut slots = vec![None; 200];
        slots[3] = Some(own);
        slots[150] = Some(own);
        assert_eq!(allocator.fill_bulk_raw(Gfp::USER, Order::FRAME, &mut slots), 198);
        assert_eq!((slots[3], slots[150]), (Some(own), Some(own)));
        assert_eq!(allocator.fill_bulk_raw(Gfp::USER, Order::FRAME, &mut slots), 0, "all are full");
        assert_eq!(allocator.fill_bulk_raw(Gfp::USER, Order::FRAME, &mut []), 0);
        let mut frames: Vec<_> = slots.into_iter().flatten().collect();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), 199);
        allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        let mut many = vec![None; 30_000];
        let short = allocator.fill_bulk_raw(Gfp::USER, Order::FRAME, &mut many);
        assert!(short > 10_000 && short < 30_000, "{short}: memory ends before the array does");
        assert_eq!(many.iter().flatten().count(), short);
        assert_eq!(allocator.alloc_raw(Gfp::USER, Order::FRAME), Err(AllocError::OutOfMemory));
        let frames: Vec<_> = many.into_iter().flatten().collect();
        allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        for size in [1, 3, 5, 9] {
            let mut folios = [Frame(0); 12];
            assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, order(size), &mut folios), 12);
            let twice = [folios[0], folios[1], folios[0]];
            assert_eq!(allocator.free_bulk_raw(order(size), &twice), Err((2, FreeError::DoubleFree)));
            allocator.free_bulk_raw(order(size), &folios[2..]).unwrap();
        }
    });
}

#[test]
fn a_range_is_freed_up_to_what_is_refused() {
    with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
        let mut frames = vec![Frame(0); 400];
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames), 400);
        let start = frames.windows(200).find(|run| run[199].0 - run[0].0 == 199).unwrap()[0];
        let run = FrameRange::new(start, 200);
        allocator.free_raw(start.add(150), Order::FRAME).unwrap();
        assert_eq!(allocator.free_range_raw(run), Err((150, FreeError::DoubleFree)));
        assert_eq!(allocator.free_range_raw(FrameRange::new(start.add(151), 49)), Ok(()));
        let rest: Vec<_> =
            frames.into_iter().filter(|&frame| frame < start || frame > start.add(199)).collect();
        allocator.free_bulk_raw(Order::FRAME, &rest).unwrap();
        assert_eq!(allocator.memory_info().used, 0);
    });
}

/// A machine that checks frees is told of folios that only move to a list.
#[test]
fn a_machine_that_watches_frees_hears_of_those_to_a_list() {
    for guard in GUARDS {
        let machine = HostedConfig::new(64 * MIB).build().unwrap();
        machine.run_on(CpuId(0), || {
            let allocator = allocator(&machine, guard);
            for size in [Order::FRAME, order(3), Order::BLOCK] {
                let folio = allocator.alloc_raw(Gfp::USER, size).unwrap();
                machine.reset_counters();
                allocator.free_raw(folio, size).unwrap();
                assert_eq!(machine.counters().frames_freed, size.frames(), "{guard:?}, {size:?}");
            }
        });
    }
}

/// Blocks of which the last free frames were allocated by number are still in the index. However many they are, a
/// request passes them by and finds whole blocks.
#[test]
fn blocks_that_were_used_up_by_number_do_not_end_a_search() {
    const BLOCKS: usize = 8 * VISIT_BLOCKS;
    with_allocator(HostedConfig::new(512 * MIB), |_, allocator| {
        let mut frames = take(allocator, BLOCKS * 512);
        let mut seen = std::collections::BTreeSet::new();
        let single: Vec<Frame> = frames.iter().copied().filter(|frame| seen.insert(frame.block())).collect();
        assert!(single.len() >= BLOCKS);
        give(allocator, &single);
        allocator.lists().drain_all();
        for &frame in &single {
            _ = allocator.alloc_at(FrameRange::new(frame, 1)).expect("it is free").into_raw();
        }
        assert!(allocator.memory_info().free > 100 * 512);
        frames.push(allocator.alloc_raw(Gfp::USER, Order::FRAME).expect("whole blocks are free"));
        give(allocator, &frames);
    });
}
