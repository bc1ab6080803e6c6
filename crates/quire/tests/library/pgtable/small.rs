//! Small cases, each of one rule.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use quire::arch::{Entry, EntryFlags, Level, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::error::MapError;
use quire::memmap::FrameMask;
use quire::page_alloc::Gfp;
use quire::pgtable::{LeafRun, MoveError, Zap};
use quire::platform::{Context, FramePlatform};
use quire::rank::Rank;
use quire::tlb::{FlushBatch, MmuGather};

use crate::pgtable::support::*;
use testkit::{order, with_allocator};

#[test]
fn what_is_mapped_is_found_and_nothing_else() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let addr = VirtAddr(5 * GIB + 3 * 4096);
        assert_eq!(tables.lookup(addr).entry, Entry::EMPTY);
        let frame = folio(machine, allocator, Order::FRAME).unwrap();
        tables.map_raw(addr, FrameRange::new(frame, 1), written()).unwrap();
        let found = tables.lookup(addr);
        assert_eq!(
            (found.level, found.entry.frame(), found.leaf_size()),
            (Level::PTE, frame, Some(PageSize::Size4K))
        );
        assert!(!tables.is_empty(range(addr.0, 4096)) && tables.is_empty(range(addr.0 + 4096, 4096)));
        assert_eq!(tables.map_raw(addr, FrameRange::new(frame, 1), written()), Err(MapError::Occupied));
        assert_eq!(allocator.counts().mapcount(frame), 1);
        let leaves = machine.leaves(context.root());
        assert_eq!(leaves.iter().map(|leaf| (leaf.addr, leaf.frame)).collect::<Vec<_>>(), [(addr, frame)]);
    });
}

#[test]
fn malformed_requests_are_refused_by_name() {
    with_space(small_machine(), |_, allocator, context| {
        let tables = page_tables(allocator, context);
        let map = |addr, frame, count| {
            tables.map_raw(VirtAddr(addr), FrameRange::new(Frame(frame), count), written())
        };
        assert_eq!(map(4096, 512, 0), Err(MapError::Unaligned));
        assert_eq!(map(4096, 1000, 100), Err(MapError::Unaligned), "the run crosses a block");
        assert_eq!(map(511 * 4096, 1024, 2), Err(MapError::Unaligned), "the addresses cross a table");
        assert_eq!(map(100, 1024, 1), Err(MapError::Unaligned));
        assert_eq!(map(0x7fff_ffff_f000, 1024, 1), Err(MapError::BadAddress));
        assert_eq!(map(u64::MAX - 4095, 1024, 1), Err(MapError::BadAddress));
        let large = |addr, frame, size| tables.map_large_raw(VirtAddr(addr), Frame(frame), size, written());
        assert_eq!(large(4096, 512, PageSize::Size2M), Err(MapError::Unaligned));
        assert_eq!(large(2 * MIB, 100, PageSize::Size2M), Err(MapError::Unaligned));
        assert_eq!(large(GIB, 512, PageSize::Size1G), Err(MapError::Unaligned));
        assert_eq!(large(0, 0, PageSize::Size4K), Err(MapError::Unaligned));
    });
}

#[test]
fn runs_are_shown_as_runs() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        populate(machine, allocator, context, range(GIB, 64 * 4096), order(6));
        let large = populate_large(machine, allocator, context, VirtAddr(GIB + 4 * MIB));
        let mut seen = Vec::new();
        tables.runs(range(GIB + 4096, 6 * MIB), |run: LeafRun| seen.push((run.addr.0, run.size, run.count)));
        assert_eq!(seen, [(GIB + 4096, PageSize::Size4K, 63), (GIB + 4 * MIB, PageSize::Size2M, 1)]);
        assert_eq!(tables.lookup(VirtAddr(GIB + 5 * MIB)).entry.frame(), large);
    });
}

#[test]
fn mapping_around_a_fault_fills_the_gaps_only() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        populate(machine, allocator, context, range(GIB + 3 * 4096, 4096), Order::FRAME);
        let frame = folio(machine, allocator, order(4)).unwrap();
        allocator.frames().hold(FrameRange::folio(frame, order(4)));
        let flags = EntryFlags::leaf(Protection::READ);
        let mapped = tables.map_where_empty_raw(VirtAddr(GIB), FrameRange::folio(frame, order(4)), flags);
        assert_eq!(mapped, Ok(15));
        assert_eq!(allocator.counts().mapcount(frame.add(3)), 0);
        assert_eq!(check(allocator, context).resident.file, 15);
        unmap_all(allocator, context, range(GIB, MIB));
        assert_eq!(allocator.release_raw(FrameRange::folio(frame, order(4))), 16);
    });
}

/// Invariant 3: a store by hardware through a file's page before it was unmapped is not forgotten, whatever
/// unmapped it.
#[test]
fn stores_through_file_pages_mark_them_dirty() {
    with_space(small_machine(), |machine, allocator, context| {
        for detach in [false, true] {
            let tables = page_tables(allocator, context);
            let frames = FrameRange::folio(folio(machine, allocator, order(3)).unwrap(), order(3));
            allocator.frames().hold(frames);
            let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE);
            tables.map_raw(VirtAddr(GIB), frames, flags).unwrap();
            running(machine, context, &[0], || machine.write(VirtAddr(GIB + 5 * 4096), &[1]).unwrap());
            let mut gather = MmuGather::new(allocator, context);
            let zap = Zap { detach, ..Zap::tables(range(GIB, 8 * 4096), context.mode().user_range()) };
            tables.unmap(&zap, &mut gather).unwrap();
            assert_eq!(gather.finish().file, -8);
            let dirty = (0..8).filter(|&at| allocator.take_dirty_raw(frames.start.add(at)));
            assert_eq!(dirty.collect::<Vec<_>>(), [5]);
            assert!(!allocator.take_dirty_raw(frames.start.add(5)), "it was taken");
            assert_eq!(allocator.release_raw(frames), 8);
        }
    });
}

/// Invariant 3: one run of leaves maps the end of a folio of 2 MiB and the start of the next folio in memory.
/// A store through a leaf of the second folio does not mark the first.
#[test]
fn a_store_marks_its_own_folio_in_a_run_over_two() {
    with_space(small_machine(), |machine, allocator, context| {
        for (detach, stored) in [false, true].into_iter().flat_map(|detach| [0, 1].map(|at| (detach, at))) {
            let tables = page_tables(allocator, context);
            let mut folios = [(); 2].map(|()| folio(machine, allocator, BLOCK).unwrap());
            folios.sort_unstable();
            assert_eq!(folios[0].add(512), folios[1], "they are neighbours");
            for (at, half) in [folios[0].add(256), folios[1]].into_iter().enumerate() {
                allocator.frames().hold(FrameRange::folio(folios[at], BLOCK));
                allocator.counts().prepare_counts(half).unwrap();
                let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE);
                tables.map_raw(VirtAddr(GIB + at as u64 * MIB), FrameRange::new(half, 256), flags).unwrap();
            }
            running(machine, context, &[0], || {
                machine.write(VirtAddr(GIB + stored as u64 * MIB + 5 * 4096), &[1]).unwrap();
            });
            let mut gather = MmuGather::new(allocator, context);
            let zap = Zap { detach, ..Zap::tables(range(GIB, 2 * MIB), context.mode().user_range()) };
            tables.unmap(&zap, &mut gather).unwrap();
            assert_eq!(gather.finish().file, -512);
            let dirty = folios.map(|folio| allocator.take_dirty_raw(folio));
            assert_eq!(dirty, [stored == 0, stored == 1], "detached: {detach}");
            for folio in folios {
                allocator.release_raw(FrameRange::folio(folio, BLOCK));
            }
        }
    });
}

/// Invariants 2 and 3: first the dirty bit, then the flush, then the count. A frame counts as mapped for as
/// long as some CPU may store to it, so that a concurrent write-back knows that the page is not clean yet. A
/// detached table is read after the flush, when no CPU sets bits in it any more.
#[test]
fn dirty_file_pages_stay_counted_until_the_flush_is_over() {
    with_space(small_machine(), |machine, allocator, context| {
        for detach in [false, true] {
            let tables = page_tables(allocator, context);
            let frames = FrameRange::folio(folio(machine, allocator, order(3)).unwrap(), order(3));
            allocator.frames().hold(frames);
            tables
                .map_raw(VirtAddr(GIB), frames, EntryFlags::leaf(Protection::READ | Protection::WRITE))
                .unwrap();
            let state = || {
                let dirty = (0..8).filter(|&at| allocator.frames().is_dirty(frames.start.add(at)));
                (
                    dirty.count(),
                    (0..8).map(|at| allocator.counts().mapcount(frames.start.add(at))).sum::<u64>(),
                )
            };
            running(machine, context, &[0, 1], || {
                let store =
                    |at: u64| machine.run_on(CpuId(1), || machine.write(VirtAddr(GIB + at * 4096), &[1]));
                (0..4).for_each(|at| store(at).unwrap());
                // The flush is owed until this is dropped.
                machine.lock_taken(Rank::AddressSpace);
                let mut gather = MmuGather::new(allocator, context);
                let zap = Zap { detach, ..Zap::tables(range(GIB, 8 * 4096), context.mode().user_range()) };
                tables.unmap(&zap, &mut gather).unwrap();
                assert_eq!(state(), (if detach { 0 } else { 4 }, 8), "before the flush, detach {detach}");
                // CPU 1 can still store through its cached translation.
                store(2).unwrap();
                gather.flush();
                machine.lock_dropped(Rank::AddressSpace);
                assert!(store(2).is_err());
                assert_eq!(state().1, 8, "after the flush, detach {detach}");
                gather.finish();
                assert_eq!(state(), (4, 0), "at the end, detach {detach}");
            });
            assert_eq!(allocator.release_raw(frames), 8);
        }
    });
}

#[test]
fn the_zero_frame_is_mapped_without_being_counted() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let zero = folio(machine, allocator, Order::FRAME).unwrap();
        let flags = EntryFlags::leaf(Protection::READ);
        tables.map_special_raw(VirtAddr(GIB), zero, flags).unwrap();
        assert_eq!((allocator.counts().mapcount(zero), check(allocator, context).resident.file), (0, 0));
        let new = folio(machine, allocator, Order::FRAME).unwrap();
        let expected = tables.lookup(VirtAddr(GIB)).entry;
        let leaf = Entry::leaf(new, PageSize::Size4K, written());
        running(machine, context, &[0, 1], || {
            machine.run_on(CpuId(1), || machine.read(VirtAddr(GIB), &mut [0]).unwrap());
            let mut gather = MmuGather::new(allocator, context);
            assert_eq!(
                tables.replace_raw(VirtAddr(GIB), PageSize::Size4K, expected, leaf, &mut gather),
                Ok(true)
            );
            assert_eq!(
                tables.replace_raw(VirtAddr(GIB), PageSize::Size4K, expected, leaf, &mut gather),
                Ok(false)
            );
            assert_eq!(gather.finish().anon, 0);
            allocator.free_raw(zero, Order::FRAME).unwrap();
        });
        assert_eq!((allocator.counts().mapcount(new), check(allocator, context).resident.anon), (1, 1));
    });
}

#[test]
fn a_large_leaf_splits_and_collapses_with_exact_counts() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let frame = populate_large(machine, allocator, context, VirtAddr(GIB));
        running(machine, context, &[0, 1], || {
            machine.run_on(CpuId(1), || machine.write(VirtAddr(GIB + 7), &[42]).unwrap());
            tables.split_at(VirtAddr(GIB + MIB)).unwrap();
            assert!((0..512).all(|at| allocator.counts().mapcount(frame.add(at)) == 1));
            assert_eq!(check(allocator, context).leaves, 512);
            let mut byte = [0];
            machine.run_on(CpuId(1), || machine.read(VirtAddr(GIB + 7), &mut byte).unwrap());
            assert_eq!((byte[0], tables.collapse(VirtAddr(GIB))), (42, Ok(true)));
            assert_eq!((check(allocator, context).leaves, context.tables()), (1, 3));
            assert_eq!(tables.collapse(VirtAddr(GIB)), Ok(false));
            machine.run_on(CpuId(1), || machine.read(VirtAddr(GIB + 7), &mut byte).unwrap());
            assert_eq!((byte[0], allocator.counts().mapcount(frame.add(9))), (42, 1));
            assert!(tables.lookup(VirtAddr(GIB)).entry.has(EntryFlags::DIRTY));
        });
    });
}

#[test]
fn gigantic_leaves_split_twice_and_go_in_any_state() {
    let config = HostedConfig::new(2 * GIB + 64 * MIB).with_cpus(2);
    with_space(HostedConfig { clearing: false, ..config }, |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let map = || {
            let frame = folio(machine, allocator, Order::GIGANTIC).expect("no gigantic folio");
            tables.map_large_raw(VirtAddr(4 * GIB), frame, PageSize::Size1G, written()).unwrap();
            frame
        };
        map();
        assert_eq!(unmap_all(allocator, context, range(4 * GIB, GIB)).anon, -262144);
        let frame = map();
        tables.split_at(VirtAddr(4 * GIB + 6 * MIB)).unwrap();
        assert_eq!(check(allocator, context).leaves, 512);
        tables.split_at(VirtAddr(4 * GIB + 6 * MIB + 4096)).unwrap();
        assert_eq!(
            (check(allocator, context).leaves, allocator.counts().mapcount(frame.add(1600))),
            (1023, 1)
        );
        let part = range(4 * GIB, 7 * MIB);
        let mut gather = MmuGather::new(allocator, context);
        tables.unmap(&Zap::tables(part, part), &mut gather).unwrap();
        assert_eq!(gather.finish().anon, -7 * 256);
        assert_eq!(allocator.counts().mapcount(frame), 0);
        assert_eq!(unmap_all(allocator, context, range(4 * GIB, GIB)).anon, -(262144 - 7 * 256));
    });
}

#[test]
fn whole_tables_move_by_their_entry() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        populate(machine, allocator, context, range(GIB, 4 * MIB), order(4));
        let large = populate_large(machine, allocator, context, VirtAddr(GIB + 4 * MIB));
        let count = context.tables();
        running(machine, context, &[0, 1], || {
            machine.run_on(CpuId(1), || machine.write(VirtAddr(GIB + MIB), &[9]).unwrap());
            let mut owed = FlushBatch::new();
            tables.move_range(range(GIB, 6 * MIB), VirtAddr(3 * GIB + 8 * MIB), &mut owed).unwrap();
            owed.flush(allocator, context);
            machine.run_on(CpuId(1), || {
                assert!(machine.read(VirtAddr(GIB + MIB), &mut [0]).is_err());
                let mut byte = [0];
                machine.read(VirtAddr(3 * GIB + 9 * MIB), &mut byte).unwrap();
                assert_eq!(byte, [9]);
            });
        });
        // One more directory for the new place; no table of leaves was allocated or freed.
        assert_eq!(
            (context.tables(), tables.lookup(VirtAddr(3 * GIB + 12 * MIB)).entry.frame()),
            (count + 1, large)
        );
        assert_eq!(check(allocator, context).leaves, 1025);
    });
}

#[test]
fn a_move_beyond_the_last_address_moves_nothing() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let frames = populate(machine, allocator, context, range(GIB, 2 * 4096), Order::FRAME);
        let mut owed = FlushBatch::new();
        let moved = tables.move_range(range(GIB, 2 * 4096), VirtAddr(0x7fff_ffff_e000), &mut owed);
        assert_eq!(moved, Err(MoveError { moved: 0, error: MapError::BadAddress }));
        owed.flush(allocator, context);
        let found = [0, 4096].map(|at| tables.lookup(VirtAddr(GIB + at)).entry.frame());
        assert_eq!(found[..], frames);
    });
}

#[test]
fn a_search_for_the_end_of_nothing_skips_whole_entries_and_no_table_of_leaves() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let end = |addr| tables.end_of_nothing(VirtAddr(addr)).map(|end| end.0);
        assert_eq!(end(GIB), Some(512 * GIB));
        populate_large(machine, allocator, context, VirtAddr(GIB + 2 * MIB));
        populate(machine, allocator, context, range(GIB + 4 * MIB + 4096, 4096), Order::FRAME);
        assert_eq!((end(GIB), end(3 * GIB)), (Some(GIB + 2 * MIB), Some(4 * GIB)));
        assert_eq!(end(GIB + 2 * MIB), None, "a large leaf");
        assert_eq!(end(GIB + 4 * MIB), None, "the first entry of the table is empty, and the second is not");
    });
}

/// A page that was stored to after it was found to be zero stays. The next store to it needs no fault, as
/// before.
#[test]
fn a_page_that_is_not_zero_can_still_be_stored_to_when_zeroes_are_dropped() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let (all, kept) = (range(GIB, 8 * 4096), VirtAddr(GIB + 3 * 4096));
        let frames = populate(machine, allocator, context, all, Order::FRAME);
        let zero = folio(machine, allocator, Order::FRAME).unwrap();
        running(machine, context, &[0], || {
            machine.write(kept, &[7]).unwrap();
            let mut gather = MmuGather::new(allocator, context);
            let zero_leaf = (zero, EntryFlags::leaf(Protection::READ));
            let dropped = tables.drop_zeroes_raw(all.start, FrameMask::run(0, 8), zero_leaf, &mut gather);
            assert_eq!((dropped, gather.finish().anon), (7, -7));
            assert!(machine.write(all.start, &[8]).is_err(), "the zero frame cannot be stored to");
            machine.write(kept.add(1), &[8]).expect("the right to store is back");
            let mut bytes = [0; 2];
            machine.read(kept, &mut bytes).unwrap();
            assert_eq!((bytes, tables.lookup(kept).entry.frame()), ([7, 8], frames[3]));
            unmap_all(allocator, context, all);
        });
        allocator.free_raw(zero, Order::FRAME).unwrap();
    });
}

/// While zeroes are dropped no candidate can be stored to, since a store behind the look at its page would be lost. One that
/// stays can be stored to afterwards.
#[test]
fn no_page_can_be_stored_to_while_it_may_be_dropped() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let all = range(GIB, 4 * 4096);
        populate(machine, allocator, context, all, Order::FRAME);
        let zero = folio(machine, allocator, Order::FRAME).unwrap();
        running(machine, context, &[0], || {
            machine.write(all.start, &[7]).unwrap();
            let (mut refused, mut gather) = (0, MmuGather::new(allocator, context));
            let put = || refused += u64::from(machine.write(all.start, &[7]).is_err());
            let zero_leaf = (zero, EntryFlags::leaf(Protection::READ));
            let drop_all = || tables.drop_zeroes_raw(all.start, FrameMask::run(0, 4), zero_leaf, &mut gather);
            let ran =
                machine.interrupt_at_calls(InterruptPlan::Every(1), Context::HardInterrupt, put, drop_all);
            assert_eq!((ran.result, gather.finish().anon), (3, -3));
            assert!(refused > 0);
            machine.write(all.start, &[8]).expect("the right to store is back");
            unmap_all(allocator, context, all);
        });
        allocator.free_raw(zero, Order::FRAME).unwrap();
    });
}

/// Candidates that map no page of the task's own stay as they are: an empty entry, a page of a file, the zero frame. Where
/// no table is, nothing is dropped.
#[test]
fn only_own_pages_are_dropped_as_zeroes() {
    with_space(small_machine(), |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let all = range(GIB, 4 * 4096);
        let [zero, cached] = [(); 2].map(|()| folio(machine, allocator, Order::FRAME).unwrap());
        let flags = EntryFlags::leaf(Protection::READ);
        populate(machine, allocator, context, range(GIB, 4096), Order::FRAME);
        tables.map_raw(all.start.add(4096), FrameRange::new(cached, 1), flags).unwrap();
        tables.map_special_raw(all.start.add(2 * 4096), zero, flags).unwrap();
        let leaves = || [1, 2, 3].map(|page| tables.lookup(all.start.add(page * 4096)).entry);
        let before = leaves();
        running(machine, context, &[0], || {
            let drop_at = |addr| {
                let mut gather = MmuGather::new(allocator, context);
                let dropped = tables.drop_zeroes_raw(addr, FrameMask::run(0, 4), (zero, flags), &mut gather);
                let change = gather.finish();
                (dropped, change.anon, change.file)
            };
            assert_eq!(drop_at(all.start), (1, -1, 0));
            assert_eq!(leaves(), before);
            assert_eq!(drop_at(VirtAddr(3 * GIB)), (0, 0, 0), "no table is there");
            unmap_all(allocator, context, all);
        });
        allocator.free_raw(zero, Order::FRAME).unwrap();
    });
}

#[test]
fn an_address_space_may_have_five_levels() {
    let config = HostedConfig { five_level: true, ..small_machine() };
    with_allocator(config, |machine, allocator| {
        let context = Tables::create(allocator, PagingMode::FiveLevel).unwrap();
        let tables = page_tables(allocator, &context);
        let addr = VirtAddr(0x00ff_ffff_ffe0_0000 - 4096);
        let frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        tables.map_raw(addr, FrameRange::new(frame, 1), written()).unwrap();
        assert_eq!(context.tables(), 5);
        running(machine, &context, &[0], || machine.write(addr, &[1, 2, 3]).unwrap());
        assert_eq!(check(allocator, &context).leaves, 1);
        assert_eq!(Tables::destroy(allocator, context).anon, -1);
    });
}

/// Invariants 4 and W6: in release builds too.
#[test]
#[should_panic(expected = "a CPU still runs the address space")]
fn an_address_space_that_runs_is_not_destroyed() {
    with_allocator(small_machine(), |machine, allocator| {
        let context = Tables::create(allocator, PagingMode::FourLevel).unwrap();
        context.switch_in(machine);
        Tables::destroy(allocator, context);
    });
}
