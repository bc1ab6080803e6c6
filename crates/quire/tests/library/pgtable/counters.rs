//! Exact counters: the cost of each verb in exchanges and flushes.

use hosted::raw::RawCounts;
use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use quire::arch::{Entry, EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::limits::{DRAIN_FRAMES, DRAIN_RUNS};
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange};
use quire::pgtable::{CopyMode, GrantWrite, Zap};
use quire::stats::Stat;
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange, ZapStrategy};

use crate::pgtable::support::*;
use testkit::{order, ranges_of};

const ZAPS: [Stat; 3] = [Stat::ZapTable, Stat::ZapEntry, Stat::TlbFlushAvoided];

const SHARES: [Stat; 3] = [Stat::TableShare, Stat::TableUnshare, Stat::BlockLock];

/// Invariants 2, 3 and 7: a gigabyte of small leaves is unmapped by one exchange and one flush.
#[test]
fn a_gigabyte_of_small_leaves_goes_in_one_exchange_and_one_flush() {
    let config =
        HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(GIB + 128 * MIB).with_cpus(2) };
    with_space(config, |machine, allocator, context| {
        let all = range(7 * GIB, GIB);
        populate(machine, allocator, context, all, order(4));
        assert_eq!(context.tables(), 1 + 1 + 1 + 512);
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            let zaps = counted(allocator, ZAPS, || {
                let change = unmap_all(allocator, context, all);
                assert_eq!(change, RssChange { anon: -262144, file: 0 });
            });
            assert_eq!(zaps, [1, 0, 0]);
            let counters = machine.counters();
            assert_eq!((counters.flushes_local, counters.flushes_remote), (1, 1));
            assert_eq!((counters.flushes_tables, counters.flushes_address_space), (2, 2));
        });
        assert_eq!(context.tables(), 1);
    });
}

#[test]
fn tables_shared_with_neighbours_stay_and_their_leaves_go_one_by_one() {
    with_space(small_machine(), |machine, allocator, context| {
        let all = range(GIB, 8 * MIB);
        populate(machine, allocator, context, all, order(2));
        let tables = page_tables(allocator, context);
        // Half of the first table, all of the second and third, half of the fourth.
        let zap = Zap::tables(range(GIB + MIB, 6 * MIB), range(GIB + MIB, 6 * MIB));
        let zaps = counted(allocator, ZAPS, || {
            let mut gather = MmuGather::new(allocator, context);
            tables.unmap(&zap, &mut gather).unwrap();
            assert_eq!(gather.finish().anon, -6 * 256);
        });
        assert_eq!(zaps, [2, 512, 1]);
        assert_eq!(context.tables(), 3 + 2);
        assert_eq!(check(allocator, context).leaves, 512);
    });
}

#[test]
fn an_address_space_that_no_cpu_runs_is_not_flushed() {
    with_space(small_machine(), |machine, allocator, context| {
        let all = range(0, 4 * MIB);
        populate(machine, allocator, context, all, Order::FRAME);
        machine.reset_counters();
        assert_eq!(unmap_all(allocator, context, all).anon, -1024);
        let counters = machine.counters();
        assert_eq!((counters.flushes_local, counters.flushes_remote), (0, 0));
    });
}

#[test]
fn few_pages_are_flushed_by_address_and_many_at_once() {
    with_space(small_machine(), |machine, allocator, context| {
        running(machine, context, &[0], || {
            for (pages, by_address) in [(1, true), (33, true), (34, false)] {
                let all = range(GIB, pages * 4096);
                populate(machine, allocator, context, all, Order::FRAME);
                machine.reset_counters();
                let local = [Stat::NrTlbLocalFlushOne, Stat::NrTlbLocalFlushAll];
                let flushed = counted(allocator, local, || {
                    let mut gather = MmuGather::new(allocator, context);
                    page_tables(allocator, context).unmap(&Zap::leaves(all), &mut gather).unwrap();
                    gather.finish();
                });
                let counters = machine.counters();
                // As in Linux, a flush by address counts each page.
                assert_eq!(flushed, if by_address { [pages, 0] } else { [0, 1] });
                assert_eq!(
                    (counters.flushes_range == 1, counters.flushes_address_space == 0),
                    (by_address, by_address)
                );
                assert_eq!(counters.flushes_local, 1);
            }
        });
    });
}

#[test]
fn protecting_what_is_so_already_flushes_nothing() {
    with_space(small_machine(), |machine, allocator, context| {
        let all = range(GIB, 4 * MIB);
        populate(machine, allocator, context, all, order(3));
        let tables = page_tables(allocator, context);
        running(machine, context, &[0, 2], || {
            let flushes = |protection| {
                machine.reset_counters();
                let mut owed = FlushBatch::new();
                tables.protect(all, protection, GrantWrite::Exclusive, &mut owed).unwrap();
                owed.flush(allocator, context);
                (machine.counters().flushes_local, machine.counters().flushes_remote)
            };
            let both = Protection::READ | Protection::WRITE;
            assert_eq!(flushes(both), (0, 0));
            assert_eq!(flushes(Protection::READ), (1, 1));
            assert_eq!(flushes(Protection::READ), (0, 0));
            assert_eq!(flushes(both), (0, 0), "giving a right needs no flush");
            assert!(tables.lookup(VirtAddr(GIB)).entry.has(EntryFlags::WRITE));
            assert_eq!(flushes(Protection::NONE), (1, 1));
            assert_eq!(flushes(both), (0, 0));
        });
    });
}

#[test]
fn a_fork_owes_one_flush_and_leaves_exact_counts() {
    with_space(small_machine(), |machine, allocator, context| {
        let all = range(GIB, 4 * MIB);
        let frames = populate(machine, allocator, context, all, order(4));
        let large = populate_large(machine, allocator, context, VirtAddr(2 * GIB));
        let child = Tables::create(allocator, context.mode()).unwrap();
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
            let (from, to) = (page_tables(allocator, context), page_tables(allocator, &child));
            for part in [all, range(2 * GIB, 2 * MIB)] {
                from.copy(&to, part, CopyMode::Private, &mut owed, &mut rss).unwrap();
            }
            owed.flush(allocator, context);
            assert_eq!(rss, RssChange { anon: 1024 + 512, file: 0 });
            assert_eq!((machine.counters().flushes_local, machine.counters().flushes_remote), (1, 1));
        });
        assert_eq!(check(allocator, &child).resident, check(allocator, context).resident);
        assert!(frames.iter().chain([&large]).all(|&frame| allocator.counts().mapcount(frame) == 2));
        Tables::destroy(allocator, child);
        assert!(frames.iter().chain([&large]).all(|&frame| allocator.counts().mapcount(frame) == 1));
    });
}

/// A run of leaves continues from one block into the next, whose counts are full. It is counted and copied in
/// two parts.
#[test]
fn a_fork_counts_a_run_over_two_blocks_to_its_end() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let first = folio(machine, allocator, order(10)).expect("out of memory").add(256);
        let halves = [first, first.add(256)].map(|start| FrameRange::new(start, 256));
        for (at, half) in halves.into_iter().enumerate() {
            tables.map_raw(VirtAddr(GIB + at as u64 * MIB), half, written()).unwrap();
        }
        // As many more leaves as a byte can count.
        (1..255).for_each(|_| allocator.counts().counter().map(halves[1]).unwrap());
        let child = Tables::create(allocator, context.mode()).unwrap();
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let to = page_tables(allocator, &child);
        tables.copy(&to, range(GIB, 2 * MIB), CopyMode::Private, &mut owed, &mut rss).unwrap();
        owed.flush(allocator, context);
        let counts = || [0, 255, 256, 511].map(|at| allocator.counts().mapcount(first.add(at)));
        assert_eq!((counts(), rss.anon), ([2, 2, 256, 256], 512));
        (1..255).for_each(|_| _ = allocator.counts().counter().unmap_raw(halves[1]));
        assert_eq!(check(allocator, &child).leaves, 512);
        Tables::destroy(allocator, child);
        assert_eq!(counts(), [1; 4]);
    });
}

/// Invariants 4 and 5: a gigabyte of small leaves is forked without touching a leaf, a map count or a block,
/// written by one side at the cost of a copied fork, and unmapped without being read.
#[test]
fn a_gigabyte_is_forked_by_sharing_512_tables() {
    let config =
        HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(GIB + 128 * MIB).with_cpus(2) };
    with_space(config, |machine, allocator, context| {
        let all = range(7 * GIB, GIB);
        let frames = populate(machine, allocator, context, all, order(4));
        let child = Tables::create(allocator, context.mode()).unwrap();
        let (from, to) = (page_tables(allocator, context), page_tables(allocator, &child));
        let leaves = machine.leaves(context.root());
        let tables = allocator.lists().stat(Stat::NrPageTablePages);
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
            let counts = counted(allocator, SHARES, || {
                from.share(&to, all, all, CopyMode::Private, &mut owed, &mut rss).unwrap();
                owed.flush(allocator, context);
            });
            assert_eq!((counts, rss), ([512, 0, 0], RssChange { anon: 262144, file: 0 }));
            let counters = machine.counters();
            assert_eq!((counters.flushes_local, counters.flushes_remote, counters.flushes_tables), (1, 1, 2));
        });
        let shared = machine.leaves(child.root());
        assert!(
            leaves
                .iter()
                .zip(&shared)
                .all(|(one, other)| (one.entry, one.table) == (other.entry, other.table))
        );
        assert!(shared.iter().all(|leaf| !leaf.write), "a shared table allows no store");
        assert_eq!(allocator.lists().stat(Stat::NrPageTablePages), tables + 3 - 1, "each table is one page");
        assert_eq!((context.tables(), child.tables()), (515, 515));
        assert_eq!(check(allocator, &child).resident, check(allocator, context).resident);
        assert!(frames.iter().all(|&frame| allocator.counts().mapcount(frame) == 1));
        // One table is copied for the child: its frames count twice, and neither side may store to them.
        let counts = counted(allocator, SHARES, || to.unshare(range(9 * GIB - 4096, 4096)).unwrap());
        assert_eq!(counts, [0, 0, 0], "nothing is mapped there");
        let counts = counted(allocator, SHARES, || to.unshare(range(7 * GIB + 4096, 4096)).unwrap());
        assert_eq!(counts[..2], [0, 1]);
        assert_eq!(allocator.counts().mapcount(frames[0]), 2);
        assert_eq!(allocator.counts().mapcount(frames[32]), 1);
        assert!(!to.lookup(VirtAddr(7 * GIB)).entry.has(EntryFlags::WRITE));
        // The other tables are dropped unread; the copy is counted down.
        let zapped = [Stat::BlockLock, Stat::ZapTable, Stat::ZapEntry];
        let counts = counted(allocator, zapped, || {
            assert_eq!(unmap_all(allocator, &child, all).anon, -262144);
        });
        assert_eq!(counts[1..], [1, 0]);
        assert!(counts[0] < 64, "only what one table maps was counted: {counts:?}");
        Tables::destroy(allocator, child);
        assert!(frames.iter().all(|&frame| allocator.counts().mapcount(frame) == 1));
        // The parent is the only sharer again: it takes its tables over, with their rights.
        let counts = counted(allocator, SHARES, || from.unshare(all).unwrap());
        assert_eq!(counts, [0, 512, 0]);
        let own = machine.leaves(context.root());
        assert_eq!(own.iter().filter(|leaf| leaf.write).count(), 262144 - 512);
    });
}

/// Invariant 7: one flush for each 64 tables, and one for the rest.
#[test]
fn tables_are_detached_in_bounded_batches() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let all = range(GIB, 65 * 2 * MIB);
        for at in 0..65 {
            populate(machine, allocator, context, range(GIB + at * 2 * MIB, 4096), Order::FRAME);
        }
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            let zaps = counted(allocator, ZAPS, || {
                let mut gather = MmuGather::new(allocator, context);
                tables.unmap(&Zap::tables(all, all), &mut gather).unwrap();
                assert_eq!(gather.finish().anon, -65);
            });
            assert_eq!(zaps, [65, 0, 0]);
            assert_eq!((machine.counters().flushes_local, machine.counters().flushes_remote), (2, 2));
        });
    });
}

/// With the address-space lock held for reading, large leaves stay busy until the one flush of all of them.
#[test]
fn large_leaves_go_together_under_the_shared_lock() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let all = range(GIB, 8 * MIB);
        for at in 0..4 {
            populate_large(machine, allocator, context, VirtAddr(GIB + at * 2 * MIB));
        }
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            let mut gather = MmuGather::new(allocator, context);
            tables.unmap(&Zap::leaves(all), &mut gather).unwrap();
            assert!(!tables.is_empty(all), "unflushed leaves are busy");
            assert_eq!(gather.finish().anon, -4 * 512);
            assert_eq!((machine.counters().flushes_local, machine.counters().flushes_remote), (1, 1));
        });
        assert_eq!(tables.lookup(VirtAddr(GIB)).entry, Entry::EMPTY);
        populate(machine, allocator, context, range(GIB, 2 * MIB), order(0));
    });
}

/// The cost of each way for 8 MiB of 64 KiB folios: exchanges of entries, detached tables, holds of a block's
/// lock. One more of these may be for the tables themselves.
#[test]
fn each_way_of_taking_apart_costs_what_it_says() {
    for (zap, entries, locks) in
        [(ZapStrategy::PerPage, 2048, 2048), (ZapStrategy::Runs, 2048, 128), (ZapStrategy::Tables, 0, 4)]
    {
        with_space_of(small_machine(), zap, |machine, allocator, context| {
            let all = range(GIB, 8 * MIB);
            populate(machine, allocator, context, all, order(4));
            let stats = [Stat::ZapEntry, Stat::ZapTable, Stat::BlockLock];
            let [exchanged, detached, held] = counted(allocator, stats, || {
                assert_eq!(unmap_all(allocator, context, all).anon, -2048);
            });
            assert_eq!((exchanged, detached, context.tables()), (entries, 1, 1), "{zap:?}");
            assert!((locks..=locks + 1).contains(&held), "{zap:?}: {held} holds of a block's lock");
        });
    }
}

/// Maps so many folios, of which every other one stays mapped, from `GIB` on. Returns how many reschedule
/// points their unmapping has.
fn points_for(
    machine: &Hosted,
    allocator: &Allocator<'_>,
    context: &MmContext,
    size: Order,
    count: usize,
) -> u64 {
    let folios = (0..2 * count).map(|_| allocator.alloc_raw(Gfp::USER, size).unwrap()).collect::<Vec<_>>();
    for (at, pair) in folios.chunks(2).enumerate() {
        let addr = VirtAddr(GIB + at as u64 * size.bytes());
        page_tables(allocator, context).map_raw(addr, FrameRange::folio(pair[0], size), written()).unwrap();
    }
    machine.reset_counters();
    unmap_all(allocator, context, range(GIB, GIB));
    folios.chunks(2).for_each(|pair| allocator.free_raw(pair[1], size).unwrap());
    machine.counters().reschedule_points
}

/// Invariant 7: a drain has a reschedule point after so many runs, and after so many frames.
#[test]
fn a_drain_is_bounded_between_reschedule_points() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new(600 * MIB) };
    with_space(config, |machine, allocator, context| {
        // Large leaves onto consecutive frames are one run.
        for at in 0..256 {
            populate_large(machine, allocator, context, VirtAddr(GIB + at * 2 * MIB));
        }
        machine.reset_counters();
        unmap_all(allocator, context, range(GIB, GIB));
        let (found, expected) = (machine.counters().reschedule_points, 256 * 512 / DRAIN_FRAMES);
        assert!((expected..=expected + 2).contains(&found), "{found} points for 512 MiB");
        // So are small leaves, over tables and blocks.
        populate(machine, allocator, context, range(GIB, 256 * MIB), BLOCK);
        let mut gather = MmuGather::new(allocator, context);
        page_tables(allocator, context).unmap(&Zap::leaves(range(GIB, GIB)), &mut gather).unwrap();
        gather.flush();
        machine.reset_counters();
        gather.finish();
        let (found, expected) = (machine.counters().reschedule_points, 128 * 512 / DRAIN_FRAMES);
        assert!((expected..=expected + 1).contains(&found), "{found} points for 256 MiB by small leaves");
        let runs = points_for(machine, allocator, context, order(3), 4 * DRAIN_RUNS);
        assert!((4..=4 + 2).contains(&runs), "{runs} points for {} runs", 4 * DRAIN_RUNS);
        // Single frames are sorted by block: they are counted, moved, and counted down.
        let frames = points_for(machine, allocator, context, order(0), 2 * DRAIN_FRAMES as usize);
        assert!((2 * 2..=2 * 3 + 2).contains(&frames), "{frames} points for {} frames", 2 * DRAIN_FRAMES);
    });
}

/// Invariant 7: a munmap that is not aligned to the tables above detaches 512 tables, and flushes once for 64
/// of them.
#[test]
fn a_gigabyte_off_its_alignment_is_flushed_eight_times() {
    let config =
        HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(GIB + 128 * MIB).with_cpus(4) };
    with_space(config, |machine, allocator, context| {
        let all = range(7 * GIB + 2 * MIB, GIB);
        populate(machine, allocator, context, all, order(9));
        // Mapped neighbours keep the tables above.
        populate(machine, allocator, context, range(7 * GIB, 2 * MIB), order(0));
        populate(machine, allocator, context, range(8 * GIB + 2 * MIB, 2 * MIB), order(0));
        running(machine, context, &[0, 2], || {
            machine.reset_counters();
            let zaps = counted(allocator, ZAPS, || {
                let mut gather = MmuGather::new(allocator, context);
                page_tables(allocator, context).unmap(&Zap::tables(all, all), &mut gather).unwrap();
                assert_eq!(gather.finish().anon, -262144);
            });
            assert_eq!(zaps, [512, 0, 0]);
            let counters = machine.counters();
            assert_eq!((counters.flushes_local, counters.flushes_remote), (8, 8));
            assert_eq!(counters.cpus_targeted, 8, "CPUs 1 and 3 run something else");
        });
    });
}

/// Invariant 1: neighbours that are unmapped together go back together, to the pools of their regions.
#[test]
fn large_folios_in_a_row_go_back_to_the_pools_of_their_regions() {
    let machine = small_machine().build().unwrap();
    let all = ranges_of(&machine);
    let [memory] = all.as_slice() else { panic!("one range") };
    // Four regions of one zone, which meet. Some have tables of the allocator at their ends.
    let border = |at: u64| Frame((memory.frames.start.0 + memory.frames.count / 4 * at) / 512 * 512);
    let starts = [memory.frames.start, border(1), border(2), border(3), memory.frames.end()];
    let ranges = [0, 1, 2, 3].map(|at| {
        let frames = FrameRange::new(starts[at], starts[at + 1].0 - starts[at].0);
        MemoryRange { frames, ..*memory }
    });
    machine.run_on(CpuId(0), || {
        let allocator = hosted::raw::page_allocator(&machine, &ranges, AllocatorConfig::default()).unwrap();
        let before = used(&allocator);
        let context = Tables::create(&allocator, PagingMode::FourLevel).unwrap();
        let mut folios: Vec<Frame> =
            std::iter::from_fn(|| allocator.alloc_raw(Gfp::USER, BLOCK).ok()).collect();
        folios.sort_unstable();
        let meet = |pair: &[Frame]| starts.contains(&pair[1]) && pair[0].add(512) == pair[1];
        assert!(folios.windows(2).any(meet));
        let tables = page_tables(&allocator, &context);
        for (addr, &frame) in (GIB..).step_by(2 * MIB as usize).zip(&folios) {
            tables.map_large_raw(VirtAddr(addr), frame, PageSize::Size2M, written()).unwrap();
        }
        let pages = 512 * folios.len() as i64;
        let mapped = range(GIB, folios.len() as u64 * 2 * MIB);
        let change = unmap_all(&allocator, &context, mapped);
        assert_eq!(change, RssChange { anon: -pages, file: 0 });
        assert_eq!(allocator.validate(), Ok(()));
        // Each region has its blocks back.
        let again = std::iter::from_fn(|| allocator.alloc_raw(Gfp::USER, BLOCK).ok());
        let mut again: Vec<Frame> = again.collect();
        again.sort_unstable();
        assert_eq!(again, folios);
        again.into_iter().for_each(|frame| allocator.free_raw(frame, BLOCK).unwrap());
        Tables::destroy(&allocator, context);
        assert_eq!(used(&allocator), before);
        assert_eq!(allocator.validate(), Ok(()));
    });
}
