//! Counts of events that are read while they change.
#![allow(unsafe_code)]

use hosted::raw::RawPages;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::page_alloc::{Gfp, Urgency};
use quire::platform::Context;
use quire::stats::Stat;
use testkit::{order, with_allocator};

const MIB: u64 = 1 << 20;

/// A count of events that is read while an interrupt allocates is never below zero.
#[test]
fn events_that_come_while_they_are_counted_do_not_count_below_zero() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, allocator| {
        let mut frames = [Frame(0); 4096];
        let mut got = 0;
        let mut alloc = || {
            if let Some(slot) = frames.get_mut(got)
                && let Ok(frame) = allocator.alloc_raw(Gfp::USER, Order::FRAME)
            {
                (*slot, got) = (frame, got + 1);
            }
        };
        alloc();
        let plan = InterruptPlan::Every(1);
        let count = || allocator.lists().stat(Stat::Pgfree);
        // SAFETY: H7: neither the count nor the handler uses the heap or locks of the standard library.
        let ran = unsafe { machine.interrupt_at_steps(plan, Context::HardInterrupt, alloc, count) };
        let freed = ran.expect("signals").result;
        assert!(freed < 4096, "{freed}");
        assert!(got > 100);
        allocator.free_bulk_raw(Order::FRAME, &frames[..got]).unwrap();
    });
}

/// A request for frames that cannot move takes some of a block of movable ones, where nothing else is free, and counts once.
/// Those that can move come from there without more.
#[test]
fn a_call_that_takes_frames_of_another_group_is_counted() {
    with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
        let [movable, other] = [Gfp::USER, Gfp::KERNEL].map(|gfp| Gfp { urgency: Urgency::Reserve, ..gfp });
        let mut frames = vec![Frame(0); allocator.memory_info().free as usize];
        let got = allocator.alloc_bulk_raw(movable, Order::FRAME, &mut frames);
        frames.truncate(got);
        let block = frames[got / 2].block();
        let (here, mut kept): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame.block() == block);
        let (free, rest) = here.split_at(8);
        kept.extend(rest);
        allocator.free_bulk_raw(Order::FRAME, free).unwrap();
        for (gfp, counted) in [(other, 1), (movable, 0)] {
            let before = allocator.lists().stat(Stat::MobilityFallback);
            let mut some = [Frame(0); 4];
            assert_eq!(allocator.alloc_bulk_raw(gfp, Order::FRAME, &mut some), 4);
            assert!(some.iter().all(|frame| frame.block() == block));
            assert_eq!(allocator.lists().stat(Stat::MobilityFallback) - before, counted);
            kept.extend(some);
        }
        allocator.free_bulk_raw(Order::FRAME, &kept).unwrap();
    });
}

/// A request counts once however often it looks for memory, whether it is for a folio or for blocks in a row.
#[test]
fn requests_that_fail_are_counted() {
    with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
        let failed = || allocator.lists().stat(Stat::AllocFailed);
        let mut blocks = Vec::new();
        while let Ok(block) = allocator.alloc_raw(Gfp::USER, Order::BLOCK) {
            assert_eq!(failed(), 0);
            blocks.push(block);
        }
        assert_eq!(failed(), 1);
        assert!(allocator.alloc_contig(Gfp::USER, 2, 1).is_err());
        assert_eq!(failed(), 2);
        blocks.into_iter().for_each(|block| allocator.free_raw(block, Order::BLOCK).unwrap());
    });
}

#[test]
fn blocks_that_come_apart_and_become_whole_are_counted() {
    with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
        let counts = || [Stat::BlockSplit, Stat::BlockMerge].map(|stat| allocator.lists().stat(stat));
        let mut halves = [Frame(0); 8];
        let [split, merged] = counts();
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, order(8), &mut halves), 8);
        let apart = counts()[0] - split;
        // The rest of the block behind the tables may have served one.
        assert!((3..=4).contains(&apart), "{apart}");
        assert_eq!(counts()[1], merged);
        allocator.free_bulk_raw(order(8), &halves).unwrap();
        allocator.lists().drain_all();
        assert_eq!(counts(), [split + apart, merged + apart]);
    });
}
