//! Contiguous ranges of whole blocks: found whenever one is free, freed together or one by one, refused
//! without a trace.

use hosted::raw::{RawCounts, RawPages};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan, MemoryRange as Range};
use quire::addr::{BlockNumber, Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::error::{AllocError, FreeError};
use quire::limits::{CONTIG_ROUNDS, CONTIG_TRIES};
use quire::page_alloc::{AllocatorConfig, Contents, Gfp, PageAllocator, Urgency};
use quire::platform::Context;
use testkit::{order, ranges_of, seed, with_allocator, within};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

type Allocator<'m> = PageAllocator<'m, Hosted>;

fn with_ranges(ranges: Vec<Range>, test: impl FnOnce(&Allocator<'_>)) {
    let machine = HostedConfig::new(MIB).with_ranges(ranges).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let before = allocator.memory_info();
        test(&allocator);
        allocator.lists().drain_local();
        allocator.validate().unwrap();
        assert_eq!(allocator.memory_info(), before, "every block is whole again");
    });
}

/// All whole free blocks, as folios of order 9.
fn take_all(allocator: &Allocator<'_>) -> BTreeSet<u32> {
    std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::BLOCK).ok()).map(|frame| frame.block().0).collect()
}

fn take_frames(allocator: &Allocator<'_>) -> Vec<Frame> {
    let mut frames = vec![Frame(0); allocator.memory_info().available() as usize];
    let got = allocator.alloc_bulk_raw(ALL, Order::FRAME, &mut frames);
    frames.truncate(got);
    frames
}

fn give(allocator: &Allocator<'_>, block: u32) {
    allocator.free_raw(Frame(u64::from(block) * 512), Order::BLOCK).unwrap();
}

/// The lowest run of free blocks in any of the regions, which are ranges of block numbers.
fn naive(free: &BTreeSet<u32>, regions: &[std::ops::Range<u32>], blocks: u32, align: u32) -> Option<u32> {
    regions.iter().find_map(|region| {
        region.clone().find(|&start| {
            start.is_multiple_of(align)
                && start + blocks <= region.end
                && (start..start + blocks).all(|block| free.contains(&block))
        })
    })
}

#[test]
fn finds_a_run_in_every_pattern_of_free_blocks() {
    // Two adjacent regions: no range may cross from one into the other.
    let ranges = vec![Range::new(0, 14 * MIB), Range::new(14 * MIB, 12 * MIB)];
    with_ranges(ranges, |allocator| {
        let all = take_all(allocator);
        assert_eq!(all, (1..13).collect());
        let regions = [0..7, 7..13];
        for pattern in 0..1u32 << 12 {
            let free: BTreeSet<u32> = all.iter().copied().filter(|b| pattern >> (b - 1) & 1 == 1).collect();
            free.iter().for_each(|&block| give(allocator, block));
            for (blocks, align) in [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (4, 4), (5, 2), (6, 1), (7, 1)] {
                let want = naive(&free, &regions, blocks, align);
                let got = allocator.alloc_contig_raw(ALL, blocks, align).ok();
                assert_eq!(got.map(|frame| frame.block().0), want, "{blocks} at {align} of {free:?}");
                if let Some(frame) = got {
                    allocator.free_contig_raw(frame, blocks).unwrap();
                }
            }
            assert_eq!(take_all(allocator), free);
        }
        all.iter().for_each(|&block| give(allocator, block));
    });
}

#[test]
fn finds_a_run_wherever_there_is_one_while_blocks_come_and_go() {
    let seed = seed(31);
    println!("QUIRE_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let ranges = vec![Range::new(6 * MIB, 300 * MIB), Range::new(4 * GIB - 180 * MIB, 330 * MIB)];
    with_ranges(ranges, |allocator| {
        let mut live: BTreeSet<u32> = take_all(allocator);
        // The zones end at 4 GiB, so no range crosses that address either.
        let regions = [3..153, 1958..2048, 2048..2123];
        let mut free = BTreeSet::new();
        for _ in 0..20_000 {
            if rng.u32(..3) > 0 {
                let runs = rng.u32(1..12);
                let first = live.range(rng.u32(..2200)..).next().copied().unwrap_or(0);
                for block in first..first + runs {
                    if live.remove(&block) {
                        give(allocator, block);
                        free.insert(block);
                    }
                }
                continue;
            }
            let (blocks, align) = (rng.u32(1..80), 1 << rng.u32(0..8));
            let got = allocator.alloc_contig_raw(ALL, blocks, align);
            // The order of the zones decides which region is asked first, not whether there is a run.
            let want = naive(&free, &regions, blocks, align);
            assert_eq!(
                got.is_ok(),
                want.is_some(),
                "{blocks} at {align} of {free:?}: {got:?}, want {want:?}"
            );
            if let Ok(frame) = got {
                let first = frame.block().0;
                assert!(first.is_multiple_of(align));
                assert!((first..first + blocks).all(|block| free.remove(&block) && live.insert(block)));
            }
        }
        allocator.validate().unwrap();
        live.iter().for_each(|&block| give(allocator, block));
    });
}

#[test]
fn what_the_cpu_keeps_for_itself_is_found() {
    with_ranges(vec![Range::new(0, 128 * MIB)], |allocator| {
        let all = take_all(allocator);
        let (first, count) = (*all.first().unwrap(), all.len() as u32);
        // Some of these stay on the CPU's list.
        all.iter().for_each(|&block| give(allocator, block));
        let range = allocator.alloc_contig_raw(ALL, count, 1).expect("listed blocks count as free");
        assert_eq!(range.block().0, first);
        allocator.free_contig_raw(range, count).unwrap();
        // Frames on lists, from a free block that is still kept in pieces.
        let frames: Vec<Frame> = (0..3).map(|_| allocator.alloc_raw(ALL, Order::FRAME).unwrap()).collect();
        frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        let range = allocator.alloc_contig_raw(ALL, count, 1).expect("spare blocks count as free");
        allocator.free_contig_raw(range, count).unwrap();
    });
}

#[test]
fn blocks_of_a_range_are_folios_of_their_own() {
    with_ranges(vec![Range::new(0, 64 * MIB)], |allocator| {
        let range = allocator.alloc_contig_raw(Gfp::USER, 6, 2).unwrap();
        let block = |n: u64| range.add(n * 512);
        assert_eq!(allocator.free_raw(range, order(10)), Err(FreeError::WrongOrder));
        allocator.counts().counter().map_large(block(3), PageSize::Size2M);
        assert_eq!(allocator.counts().mapcount(block(3).add(5)), 1);
        assert_eq!(allocator.counts().mapcount(block(2).add(5)), 0);
        let used = allocator.memory_info().used;
        assert_eq!(allocator.free_contig_raw(range, 6), Err(FreeError::InUse));
        assert_eq!(allocator.free_contig_raw(range.add(1), 2), Err(FreeError::WrongOrder));
        assert_eq!(allocator.free_contig_raw(range, 0), Ok(()));
        assert_eq!(allocator.memory_info().used, used, "a refusal changes nothing");
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(block(3), PageSize::Size2M, Contents::Unknown),
            512
        );
        allocator.free_raw(block(0), Order::BLOCK).unwrap();
        assert_eq!(allocator.free_contig_raw(range, 3), Err(FreeError::DoubleFree));
        assert_eq!(allocator.free_contig_raw(block(1), 3), Err(FreeError::DoubleFree), "its last is free");
        allocator.free_contig_raw(block(1), 2).unwrap();
        assert_eq!(allocator.free_contig_raw(block(1), 2), Err(FreeError::DoubleFree));
        allocator.free_contig_raw(block(4), 2).unwrap();
        assert_eq!(allocator.free_contig_raw(Frame(1 << 30), 1), Err(FreeError::NotMemory));
        assert_eq!(
            allocator.free_contig_raw(Frame(0), 1),
            Err(FreeError::WrongOrder),
            "the manager's own tables"
        );
        assert_eq!(
            allocator.free_contig_raw(Frame((u64::from(u32::MAX)) << 9), 2),
            Err(FreeError::NotMemory)
        );
        let small = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        assert_eq!(
            allocator.free_contig_raw(Frame(small.block().0 as u64 * 512), 1),
            Err(FreeError::WrongOrder)
        );
        allocator.free_raw(small, Order::FRAME).unwrap();
    });
}

#[test]
fn a_range_that_spans_two_regions_goes_back_to_both() {
    with_ranges(vec![Range::new(0, 14 * MIB), Range::new(14 * MIB, 12 * MIB)], |allocator| {
        let all = take_all(allocator);
        let (first, count) = (*all.first().unwrap(), all.len() as u32);
        assert_eq!(count, 12);
        allocator.free_contig_raw(Frame(u64::from(first) * 512), count).unwrap();
        allocator.validate().unwrap();
    });
}

/// The summary of a pool has a bit for each 128 MiB, so that one word of it ends at 8 GiB.
#[test]
fn a_region_of_more_than_8_gib_hands_each_block_out_once() {
    with_ranges(vec![Range::new(4 * GIB, 8 * GIB + 256 * MIB)], |allocator| {
        let whole = allocator.memory_info().free / 512;
        assert!(whole > 64 * 64 + 64, "blocks of the second word are free");
        let all = take_all(allocator);
        assert_eq!(all.len() as u64, whole);
        // One range lies before the end of the word and one behind it. The lower one is found although the
        // higher one was just allocated.
        let (low, high) = (*all.first().unwrap(), all.last().unwrap() - 64);
        [low, high].iter().for_each(|&block| give(allocator, block));
        assert_eq!(take_all(allocator), [low, high].into());
        all.iter().for_each(|&block| give(allocator, block));
    });
}

#[test]
fn gigantic_pages_come_from_either_call() {
    with_ranges(vec![Range::new(0, 3 * GIB + 700 * MIB)], |allocator| {
        let folio = allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap();
        assert!(folio.is_aligned(Order::GIGANTIC));
        let range = allocator.alloc_contig_raw(Gfp::USER, 512, 512).unwrap();
        assert!(range.is_aligned(Order::GIGANTIC) && range != folio);
        // No third aligned range is free; a third of one is free before the first, and another behind the
        // last.
        assert_eq!(allocator.alloc_contig_raw(Gfp::USER, 512, 512), Err(AllocError::OutOfMemory));
        let odd = allocator.alloc_contig_raw(Gfp::USER, 337, 1).unwrap();
        let other = allocator.alloc_contig_raw(Gfp::USER, 333, 1).unwrap();
        assert_ne!(odd, other);
        allocator.free_contig_raw(other, 333).unwrap();
        allocator.free_contig_raw(odd, 337).unwrap();
        allocator.free_contig_raw(range, 512).unwrap();
        allocator.free_raw(folio, Order::GIGANTIC).unwrap();
    });
}

#[test]
fn refusals_leave_no_trace() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, allocator| {
        let before = allocator.memory_info();
        for (blocks, align) in [(0, 1), (1, 0), (2, 3), (0, 0), (4, 12)] {
            assert_eq!(allocator.alloc_contig_raw(Gfp::USER, blocks, align), Err(AllocError::BadOrder));
        }
        for (blocks, align) in [(32, 1), (u32::MAX, 1), (1, 1 << 31), (33, 1 << 31), (1 << 31, 1 << 31)] {
            assert_eq!(allocator.alloc_contig_raw(Gfp::USER, blocks, align), Err(AllocError::OutOfMemory));
        }
        assert_eq!(allocator.alloc_contig_raw(Gfp::USER.on_node(3), 1, 1), Err(AllocError::BadNode));
        machine.set_failures(hosted::FailurePlan::Nth(0));
        assert_eq!(allocator.alloc_contig_raw(Gfp::USER, 1, 1), Err(AllocError::OutOfMemory));
        machine.set_failures(hosted::FailurePlan::Off);
        assert_eq!(allocator.memory_info(), before);
        // The watermark holds: frames below it are for the reserve only. The block that holds the tables has
        // few free frames, so only whole blocks could serve.
        let mut edge = vec![Frame(0); (before.free % 512) as usize - 10];
        assert_eq!(allocator.alloc_bulk_raw(Gfp::KERNEL, Order::FRAME, &mut edge), edge.len());
        let before = allocator.memory_info();
        let blocks = (before.free / 512) as u32;
        assert_eq!(allocator.alloc_contig_raw(Gfp::USER, blocks, 1), Err(AllocError::OutOfMemory));
        assert_eq!(allocator.memory_info(), before);
        let range = allocator.alloc_contig_raw(ALL, blocks, 1).unwrap();
        allocator.free_contig_raw(range, blocks).unwrap();
        allocator.free_bulk_raw(Order::FRAME, &edge).unwrap();
    });
}

#[test]
fn cpus_that_race_for_ranges_get_different_blocks() {
    const CPUS: usize = 4;
    let machine = HostedConfig::new(256 * MIB).with_cpus(CPUS).build().unwrap();
    let new =
        || hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
    let allocator = machine.run_on(CpuId(0), new);
    let before = allocator.memory_info();
    let owners: Vec<std::sync::atomic::AtomicU32> = (0..128).map(|_| 0.into()).collect();
    machine.spawn_cpus(CPUS, |cpu| {
        let mut rng = fastrand::Rng::with_seed(cpu.index() as u64);
        let own = cpu.0 + 1;
        let change = |frame: Frame, blocks: u32, from: u32, to: u32| {
            let first = frame.block().0 as usize;
            for owner in &owners[first..first + blocks as usize] {
                assert_eq!(owner.swap(to, std::sync::atomic::Ordering::Relaxed), from);
            }
        };
        let (mut live, mut small): (Vec<(Frame, u32)>, Vec<Frame>) = (Vec::new(), Vec::new());
        for _ in 0..3_000 {
            match rng.u32(..6) {
                0..2 => {
                    let blocks = rng.u32(1..20);
                    if let Ok(frame) = allocator.alloc_contig_raw(Gfp::USER, blocks, 1 << rng.u32(..3)) {
                        change(frame, blocks, 0, own);
                        live.push((frame, blocks));
                    }
                }
                2 => small.extend(allocator.alloc_raw(Gfp::USER, Order::FRAME).ok()),
                3 if !small.is_empty() => {
                    let frame = small.swap_remove(rng.usize(..small.len()));
                    allocator.free_raw(frame, Order::FRAME).unwrap();
                }
                _ if !live.is_empty() => {
                    let (frame, blocks) = live.swap_remove(rng.usize(..live.len()));
                    change(frame, blocks, own, 0);
                    if rng.bool() {
                        allocator.free_contig_raw(frame, blocks).unwrap();
                    } else {
                        let each = (0..blocks).map(|at| frame.add(u64::from(at) * 512));
                        each.for_each(|frame| allocator.free_raw(frame, Order::BLOCK).unwrap());
                    }
                }
                _ => {}
            }
        }
        for (frame, blocks) in live {
            change(frame, blocks, own, 0);
            allocator.free_contig_raw(frame, blocks).unwrap();
        }
        small.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    });
    machine.spawn_cpus(CPUS, |_| allocator.lists().drain_local());
    allocator.validate().unwrap();
    assert_eq!(allocator.memory_info(), before);
}

/// A block that cannot be moved now may be movable later: each of the best ranges is shown as often as the
/// limits allow.
#[test]
fn ranges_that_cannot_be_emptied_are_shown_a_few_times_each() {
    with_ranges(vec![Range::new(0, 14 * MIB)], |allocator| {
        let frames = take_frames(allocator);
        let mut blocks = BTreeSet::new();
        let (held, free): (Vec<Frame>, Vec<Frame>) =
            frames.into_iter().partition(|frame| blocks.insert(frame.block().0));
        held.iter().for_each(|&frame| allocator.frames().hold(FrameRange::new(frame, 1)));
        allocator.free_bulk_raw(Order::FRAME, &free).unwrap();
        let mut shown: Vec<u32> = Vec::new();
        let got = allocator.alloc_contig_moving(ALL, 1, 1, |range| shown.push(range.start.block().0));
        assert_eq!(got, Err(AllocError::OutOfMemory));
        let ranges: BTreeSet<u32> = shown.iter().copied().collect();
        assert_eq!((ranges.len(), shown.len()), (CONTIG_TRIES, CONTIG_TRIES * CONTIG_ROUNDS));
        held.iter().for_each(|&frame| assert_eq!(allocator.release_raw(FrameRange::new(frame, 1)), 1));
    });
}

/// A free block that is still in pieces serves a request for a whole one at once. Frames on the CPU's lists
/// stay there.
#[test]
fn a_spare_block_becomes_whole_and_the_lists_keep_theirs() {
    with_ranges(vec![Range::new(0, 14 * MIB)], |allocator| {
        let all = take_all(allocator);
        let [spare, broken] = [0, 1].map(|at| *all.iter().nth(at).unwrap());
        give(allocator, broken);
        allocator.lists().drain_local();
        let other = allocator.alloc_raw(ALL, order(4)).unwrap();
        let edge = take_frames(allocator);
        give(allocator, spare);
        allocator.lists().drain_local();
        let piece = allocator.alloc_raw(ALL, order(4)).unwrap();
        assert_eq!(piece.block().0, spare);
        allocator.free_raw(piece, order(4)).unwrap();
        // More than a block is free, without the frames of the descriptors.
        allocator.free_raw(other, order(4)).unwrap();
        let (listed, used) = edge.split_at(10);
        listed.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        assert_eq!(allocator.memory_info().cached, 10);
        let whole = allocator.alloc_raw(ALL, Order::BLOCK).expect("a spare block");
        assert_eq!((whole.block().0, allocator.memory_info().cached), (spare, 10));
        allocator.free_bulk_raw(Order::FRAME, used).unwrap();
        all.iter().filter(|&&block| block != broken).for_each(|&block| give(allocator, block));
    });
}

/// An interrupt allocates at every moment at which another request empties the only block with free frames. It finds
/// some or none, and does not come back to the isolated block for ever.
#[test]
fn an_interrupt_does_not_search_an_isolated_block_for_ever() {
    with_allocator(HostedConfig::new(14 * MIB).with_cpus(2), |machine, allocator| {
        let frames = take_frames(allocator);
        let free = |block: BlockNumber, wanted: fn(usize) -> bool| {
            let some = frames.iter().filter(|at| at.block() == block && wanted(at.index_in_block()));
            some.for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
            allocator.lists().drain_local();
        };
        let [emptied, other, single] = [3, 4, 5].map(BlockNumber);
        free(emptied, |at| at >= 8);
        // A request for a block needs as many free frames.
        free(single, |at| at % 2 == 0);
        // Only a block of which all that is in use could be moved is isolated.
        let held = FrameRange::new(emptied.first_frame(), 8);
        allocator.frames().hold(held);
        let [endless, through] = [const { AtomicBool::new(false) }; 2];
        let search = || {
            let found = || {
                machine.interrupt_at_calls(
                    InterruptPlan::Nth(2000),
                    Context::HardInterrupt,
                    || endless.store(true, Ordering::SeqCst),
                    || allocator.alloc_raw(ALL, order(3)),
                )
            };
            let give_back = |frame| allocator.free_raw(frame, order(3)).unwrap();
            _ = found().result.map(give_back);
        };
        let empty = || allocator.alloc_contig_moving(ALL, 1, 1, |_| ());
        machine.spawn_cpus(2, |cpu| {
            if cpu == CpuId(1) {
                within(Duration::from_secs(60), || {
                    [&endless, &through].iter().any(|end| end.load(Ordering::SeqCst))
                });
                // Ends a search that would not end.
                return free(other, |at| (8..16).contains(&at));
            }
            let (mut round, mut calls) = (0, 0);
            while round <= calls && !endless.load(Ordering::SeqCst) {
                let ran = machine.interrupt_at_calls(
                    InterruptPlan::Nth(round),
                    Context::SoftInterrupt,
                    search,
                    empty,
                );
                assert_eq!(ran.result, Err(AllocError::OutOfMemory), "some frames are in use");
                allocator.lists().drain_local();
                (round, calls) = (round + 1, ran.events);
            }
            through.store(true, Ordering::SeqCst);
            println!("{round} moments");
        });
        assert!(!endless.into_inner(), "an interrupt searches for ever");
        allocator.release_raw(held);
        free(other, |at| !(8..16).contains(&at));
        free(single, |at| at % 2 == 1);
    });
}
