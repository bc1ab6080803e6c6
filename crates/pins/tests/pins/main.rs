//! The cost of requests for frames in numbers that do not depend on the machine's load: calls of the
//! platform, locks taken, descriptors touched, instructions. A commit that changes one of them does so on
//! purpose, and says why.

#[cfg(not(miri))]
mod arrivals;
mod collapse;
mod descriptors;
#[cfg(not(miri))]
mod instructions;
mod zap;

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use pins::{Calls, Counting, Locks};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::limits::{MAGAZINE_FRAMES, PCP_BATCH, PCP_CAPACITY};
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator};
use quire::stats::Stat;
use testkit::{order, ranges_of};

type Allocator<'a> = PageAllocator<'a, Counting<'a>>;

/// An allocator over so much memory that each list has its full length.
fn with_counting(test: impl FnOnce(&Counting<'_>, &Allocator<'_>)) {
    let machine = HostedConfig::new(4 << 30).build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let allocator = allocator(&counting, &machine);
        test(&counting, &allocator);
        allocator.lists().drain_all();
        allocator.validate().unwrap();
    });
}

fn allocator<'a>(counting: &'a Counting<'_>, machine: &Hosted) -> Allocator<'a> {
    hosted::raw::page_allocator(counting, &ranges_of(machine), AllocatorConfig::default()).unwrap()
}

fn take(allocator: &Allocator<'_>, count: usize) -> Vec<Frame> {
    (0..count).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()).collect()
}

fn give(allocator: &Allocator<'_>, frames: &[Frame]) {
    frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
}

/// How often `stat` was counted during `work`, and the calls of `work`.
fn counted(
    counting: &Counting<'_>,
    allocator: &Allocator<'_>,
    stat: Stat,
    work: impl FnOnce(),
) -> (u64, Calls) {
    let before = allocator.lists().stat(stat);
    let (calls, ()) = counting.during(work);
    (allocator.lists().stat(stat) - before, calls)
}

/// The task is pinned, without a lock, a query of the context or a switch of interrupts. A checking machine
/// is also asked for failures, and told of each freed frame.
#[test]
fn a_pair_from_the_lists_takes_no_lock() {
    with_counting(|counting, allocator| {
        for size in 0..=9 {
            let warm = [(); 2].map(|()| allocator.alloc_raw(Gfp::USER, order(size)).unwrap());
            warm.iter().for_each(|&folio| allocator.free_raw(folio, order(size)).unwrap());
            let (calls, folio) = counting.during(|| allocator.alloc_raw(Gfp::USER, order(size)).unwrap());
            assert_eq!(
                calls,
                Calls { pins: 1, unpins: 1, fail_asked: 1, ..Calls::default() },
                "order {size}"
            );
            let (calls, ()) = counting.during(|| allocator.free_raw(folio, order(size)).unwrap());
            assert_eq!(calls, Calls { pins: 1, unpins: 1, freed: 1, ..Calls::default() }, "order {size}");
        }
    });
}

/// One block's lock for 128 frames. The shard is read, and told that the block has fewer. The list may park
/// one more magazine; it reads without a lock that it has none parked, and that the zone's depot has none.
#[test]
fn a_refill_takes_one_block_lock() {
    with_counting(|counting, allocator| {
        // Refills of 4, 8, 16, 32, 64 and 128 frames, all from one block.
        let mut frames = take(allocator, 4 + 8 + 16 + 32 + 64 + PCP_BATCH);
        let cached = allocator.memory_info().cached;
        let (locks, calls) =
            counted(counting, allocator, Stat::BlockLock, || frames.extend(take(allocator, 1)));
        assert_eq!(allocator.memory_info().cached, cached + PCP_BATCH as u64 - 1);
        assert_eq!(locks, 1);
        assert_eq!(calls.locks(), Locks { block: 1, shard: 2, parked: 1, ..Locks::default() });
        assert_eq!((calls.interrupt_switches, calls.direct_maps), (0, 0));
        give(allocator, &frames);
    });
}

/// One lock of the list's own, and no block's, for a whole array of folios each way.
#[test]
fn a_magazine_is_parked_and_taken_under_one_lock() {
    with_counting(|counting, allocator| {
        for _ in 0..3 {
            give(allocator, &take(allocator, 16 * PCP_CAPACITY));
        }
        let of_one = Locks { parked: 1, ..Locks::default() };
        // Allocations until the array is empty, one that takes a magazine, and so on.
        let mut taken = Vec::new();
        let (mut unparked, mut parked) = (0, 0);
        for _ in 0..8 * PCP_CAPACITY {
            let (calls, frames) = counting.during(|| take(allocator, 1));
            taken.extend(frames);
            if calls.locks() != Locks::default() {
                assert_eq!(calls.locks(), of_one);
                unparked += 1;
            }
        }
        for &frame in &taken {
            let (calls, ()) = counting.during(|| give(allocator, &[frame]));
            if calls.locks() != Locks::default() {
                assert_eq!(calls.locks(), of_one);
                parked += 1;
            }
        }
        let magazines = taken.len() / MAGAZINE_FRAMES;
        assert!((magazines - 2..=magazines).contains(&unparked), "{unparked} of {magazines}");
        assert!((magazines - 2..=magazines).contains(&parked), "{parked} of {magazines}");
    });
}

/// One hold of a block's lock for all 512 frames of it, each way.
#[test]
fn a_bulk_call_takes_one_block_lock() {
    with_counting(|counting, allocator| {
        let mut frames = [Frame(0); 512];
        // The block is in small pieces afterwards, and its shard's spare.
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames), 512);
        allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        let (locks, calls) = counted(counting, allocator, Stat::BlockLock, || {
            assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut frames), 512);
        });
        assert!(frames.iter().all(|frame| frame.block() == frames[0].block()));
        assert_eq!(locks, 1);
        assert_eq!(calls.locks(), Locks { block: 1, shard: 2, ..Locks::default() });
        assert_eq!((calls.interrupt_switches, calls.direct_maps, calls.fail_asked), (0, 0, 1));
        let (locks, calls) = counted(counting, allocator, Stat::BlockLock, || {
            allocator.free_bulk_raw(Order::FRAME, &frames).unwrap();
        });
        assert_eq!(locks, 1);
        assert_eq!(calls.locks(), Locks { block: 1, shard: 1, ..Locks::default() });
        assert_eq!((calls.interrupt_switches, calls.direct_maps), (0, 0));
    });
}
