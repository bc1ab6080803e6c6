//! Tables whose entries are scattered over memory are drained in another way: sorted by block.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use std::collections::HashMap;

use fastrand::Rng;
use hosted::{HostedConfig, MemoryRange};
use quire::addr::{Frame, FrameRange, Order, PhysAddr, VirtAddr};
use quire::arch::{EntryFlags, Protection};
use quire::page_alloc::Gfp;
use quire::pgtable::Zap;
use quire::stats::Stat;
use quire::tlb::{MmContext, MmuGather};

use crate::pgtable::support::*;
use testkit::seed;

/// Two ranges of memory so far apart that block numbers have several digits.
fn machine() -> HostedConfig {
    let range = |start: u64| MemoryRange { start: PhysAddr(start), bytes: 64 * MIB, node: 0 };
    HostedConfig::new(0).with_ranges(vec![range(0), range(96 * GIB)]).with_cpus(2)
}

/// Invariants 3 and 5: counts are exact, whatever is mapped more than once, in tables and across them, and
/// stores stay known, for each part that is unmapped.
#[test]
fn frames_all_over_memory_are_counted_down_exactly() {
    let first = seed(1);
    for seed in first..first + 6 {
        with_space(machine(), |machine, allocator, context| {
            let mut rng = Rng::with_seed(seed);
            let tables = page_tables(allocator, context);
            let (pages, distinct) = (512 * rng.u64(1..=9), rng.usize(200..5000));
            let mut frames: Vec<Frame> =
                (0..distinct).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()).collect();
            rng.shuffle(&mut frames);
            let files = rng.usize(1..40);
            frames[..files].iter().for_each(|&frame| allocator.frames().hold(FrameRange::new(frame, 1)));
            let mut mapped: HashMap<u64, Frame> = HashMap::new();
            let mut counts: HashMap<Frame, u64> = HashMap::new();
            let anon = EntryFlags::leaf(Protection::READ | Protection::WRITE) | EntryFlags::ACCESSED;
            let mut dirty = Vec::new();
            for page in 0..pages {
                if rng.u8(..10) == 0 {
                    continue;
                }
                let which = rng.usize(..frames.len());
                let frame = frames[which];
                let mut flags = if which < files { anon } else { anon | EntryFlags::ANON };
                if rng.u8(..8) == 0 {
                    flags = flags | EntryFlags::DIRTY;
                    dirty.extend((which < files).then_some((page, frame)));
                }
                tables.map_raw(VirtAddr(GIB + page * 4096), FrameRange::new(frame, 1), flags).unwrap();
                mapped.insert(page, frame);
                *counts.entry(frame).or_default() += 1;
            }
            // Frames without a mapping have no owner.
            frames.iter().skip(files).filter(|frame| !counts.contains_key(frame)).for_each(|&frame| {
                allocator.free_raw(frame, Order::FRAME).unwrap();
            });
            running(machine, context, &[0, 1], || {
                let cut = rng.u64(0..=pages);
                for part in [cut..pages, 0..cut] {
                    let gone = range(GIB + part.start * 4096, (part.end - part.start) * 4096);
                    let mut gather = MmuGather::new(allocator, context);
                    tables.unmap(&Zap::tables(gone, gone), &mut gather).unwrap();
                    gather.finish();
                    for frame in part.clone().filter_map(|page| mapped.get(&page)) {
                        *counts.get_mut(frame).unwrap() -= 1;
                    }
                    for (&frame, &count) in &counts {
                        assert_eq!(allocator.counts().mapcount(frame), count, "seed {seed}: {frame:?}");
                    }
                    for (_, frame) in dirty.iter().filter(|(page, _)| part.contains(page)) {
                        assert!(allocator.frames().is_dirty(*frame), "seed {seed}");
                    }
                }
            });
            for &frame in &frames[..files] {
                allocator.take_dirty_raw(frame);
                assert_eq!(allocator.release_raw(FrameRange::new(frame, 1)), 1);
            }
        });
    }
}

/// Maps so many leaves in one table, each onto another block than the one before. Returns how many holds of
/// blocks' locks their unmapping costs.
fn holds_for(allocator: &Allocator<'_>, context: &MmContext, leaves: u64) -> u64 {
    let all: Vec<Frame> = (0..1024).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()).collect();
    let block = all[0].block();
    let (mut here, mut there): (Vec<Frame>, Vec<Frame>) =
        all.iter().partition(|frame| frame.block() == block);
    for page in 0..leaves {
        let frame = if page % 2 == 0 { here.pop() } else { there.pop() }.unwrap();
        let addr = VirtAddr(GIB + page * 4096);
        page_tables(allocator, context).map_raw(addr, FrameRange::new(frame, 1), written()).unwrap();
    }
    let [holds] = counted(allocator, [Stat::BlockLock], || {
        assert_eq!(unmap_all(allocator, context, range(GIB, 2 * MIB)).anon, -(leaves as i64));
    });
    here.iter().chain(&there).for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    holds
}

/// A table of 64 leaves is sorted: one hold of a block's lock serves all its frames. With fewer leaves, each
/// costs one.
#[test]
fn a_table_of_64_leaves_is_sorted_by_block_and_one_of_63_is_not() {
    with_space(small_machine(), |_, allocator, context| {
        assert_eq!([63, 64].map(|leaves| holds_for(allocator, context, leaves)), [63, 2]);
    });
}
