//! Collapse in place (invariant 11): only the size of leaves changes; bits that hardware sets meanwhile are
//! kept; a range that cannot be one leaf is not changed.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use quire::arch::EntryFlags;
use quire::error::MapError;
use quire::page_alloc::Gfp;
use quire::pgtable::{Obstacle, Zap};
use quire::platform::Context;
use quire::stats::Stat;
use quire::tlb::{FlushBatch, MmContext, MmuGather};

use crate::pgtable::support::*;

const LARGE: u64 = 2 * MIB;
const PAGE: u64 = 4096;

fn clean() -> EntryFlags {
    written().without(EntryFlags::DIRTY | EntryFlags::ACCESSED)
}

/// Maps blocks of one folio, or of several, by 4 KiB leaves from `addr` on.
fn map_small(
    allocator: &Allocator<'_>,
    context: &MmContext,
    addr: VirtAddr,
    first: Frame,
    blocks: u64,
    flags: EntryFlags,
) {
    for at in 0..blocks {
        let run = FrameRange::folio(first.add(at * 512), Order::BLOCK);
        page_tables(allocator, context).map_raw(addr.add(at * LARGE), run, flags).expect("nothing is there");
    }
}

fn collapse_tables(
    allocator: &Allocator<'_>,
    context: &MmContext,
    addr: VirtAddr,
    tables: u64,
) -> Result<u64, Obstacle> {
    collapse_checked(allocator, context, addr, tables, false)
}

/// The same, perhaps after a survey.
fn collapse_checked(
    allocator: &Allocator<'_>,
    context: &MmContext,
    addr: VirtAddr,
    tables: u64,
    checked: bool,
) -> Result<u64, Obstacle> {
    let mut gather = MmuGather::new(allocator, context);
    let range = range(addr.0, tables * LARGE);
    let done = page_tables(allocator, context).collapse_tables(range, checked, &mut gather);
    gather.finish();
    done
}

fn unmap_page(allocator: &Allocator<'_>, context: &MmContext, at: VirtAddr) {
    let mut gather = MmuGather::new(allocator, context);
    page_tables(allocator, context).unmap(&Zap::leaves(range(at.0, PAGE)), &mut gather).unwrap();
    gather.finish();
}

fn leaf_frames(machine: &Hosted, context: &MmContext, addr: u64) -> u64 {
    machine.probe(context.root(), VirtAddr(addr)).map_or(0, |leaf| leaf.frames)
}

fn gigantic_machine() -> HostedConfig {
    HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(2 * GIB + 64 * MIB).with_cpus(2) }
}

/// Invariant 3: a store at every moment of a collapse of two clean tables either faults or is found in a
/// dirty leaf, as far as the machine's calls distinguish moments. No CPU ever has both sizes cached.
#[test]
fn a_store_at_any_moment_of_a_collapse_is_found_or_faults() {
    with_space(small_machine(), |machine, allocator, context| {
        let all = range(GIB, 2 * LARGE);
        let place = all.start.add(LARGE + 77 * PAGE);
        let (mut n, mut stored, mut refused) = (0, 0, 0);
        running(machine, context, &[0], || {
            loop {
                for at in 0..2 {
                    let block = folio(machine, allocator, BLOCK).unwrap();
                    map_small(allocator, context, all.start.add(at * LARGE), block, 1, clean());
                }
                let mut done = 0;
                let store = || {
                    let hits = machine.counters().tlb_hits;
                    let cached = machine.read(place, &mut [0]).is_ok() && machine.counters().tlb_hits > hits;
                    let large = leaf_frames(machine, context, place.0) == 512;
                    assert!(!cached || !large, "two sizes at call {n}");
                    match machine.fetch_add(place, 1) {
                        Ok(_) => done += 1,
                        Err(_) => refused += 1,
                    }
                };
                machine.read(place.add(PAGE), &mut [0]).unwrap();
                let ran =
                    machine.interrupt_at_calls(InterruptPlan::Nth(n), Context::HardInterrupt, store, || {
                        collapse_tables(allocator, context, all.start, 2)
                    });
                assert_eq!(ran.result, Ok(2));
                let leaf = machine.probe(context.root(), place).unwrap();
                assert_eq!(
                    (leaf.frames, leaf.accessed),
                    (512, true),
                    "the page that was read was in this table"
                );
                assert_eq!(leaf.dirty, done > 0, "call {n}");
                assert!(
                    !machine.probe(context.root(), all.start).unwrap().dirty,
                    "no CPU stored to the other"
                );
                let mut word = [0; 8];
                machine.read(place, &mut word).unwrap();
                assert_eq!(u64::from_le_bytes(word), done, "call {n}");
                check(allocator, context);
                unmap_all(allocator, context, all);
                stored += done;
                if ran.delivered == 0 {
                    break;
                }
                n += 1;
            }
        });
        assert!(
            stored > 0 && refused > 0 && stored < n,
            "{stored} of {n} stores were made, {refused} faulted"
        );
    });
}

/// Invariant 6: any obstacle is named, wherever it is, and nothing has changed.
#[test]
fn what_cannot_be_one_leaf_stays_as_it_is() {
    type Spoil = fn(&Hosted, &Allocator<'_>, &MmContext, VirtAddr);
    let spoilers: [(Obstacle, Spoil); 5] = [
        (Obstacle::Hole, |_, allocator, context, at| {
            unmap_page(allocator, context, at);
        }),
        (Obstacle::Rights, |_, allocator, context, at| {
            let mut owed = FlushBatch::new();
            page_tables(allocator, context).mark_write_protected(range(at.0, PAGE), &mut owed).unwrap();
            owed.flush(allocator, context);
        }),
        (Obstacle::Frames, |machine, allocator, context, at| {
            unmap_page(allocator, context, at);
            let other = folio(machine, allocator, Order::FRAME).unwrap();
            page_tables(allocator, context).map_raw(at, FrameRange::new(other, 1), clean()).unwrap();
        }),
        (Obstacle::Frames, |_, allocator, context, at| {
            let tables = page_tables(allocator, context);
            let same = tables.lookup(at).entry.frame();
            unmap_page(allocator, context, at);
            tables.map_special_raw(at, same, clean()).unwrap();
        }),
        (Obstacle::Lost, |_, allocator, context, at| {
            let tables = page_tables(allocator, context);
            let mut gather = MmuGather::new(allocator, context);
            assert!(tables.poison(at, PageSize::Size4K, tables.lookup(at).entry, &mut gather));
            gather.finish();
        }),
    ];
    for (obstacle, spoil) in spoilers {
        for page in [0, 1, 300, 511, 512, 1023] {
            with_space(small_machine(), |machine, allocator, context| {
                let two: Vec<Frame> = (0..2).map(|_| folio(machine, allocator, BLOCK).unwrap()).collect();
                for (at, &block) in two.iter().enumerate() {
                    allocator.frames().hold(FrameRange::folio(block, BLOCK));
                    map_small(allocator, context, VirtAddr(GIB + at as u64 * LARGE), block, 1, clean());
                }
                let tables = page_tables(allocator, context);
                for at in [VirtAddr(GIB), VirtAddr(GIB + LARGE)] {
                    assert_eq!(tables.check_collapse(at, PageSize::Size2M, range(at.0, LARGE)), Ok(()));
                }
                spoil(machine, allocator, context, VirtAddr(GIB + page * PAGE));
                let before = check(allocator, context);
                // Whether the collapse relies on that survey or not.
                for checked in [true, false] {
                    let refused = collapse_checked(allocator, context, VirtAddr(GIB), 2, checked);
                    assert_eq!(refused, Err(obstacle), "page {page}, {checked}");
                }
                let own = VirtAddr(GIB + page / 512 * LARGE);
                let part = range(own.0, LARGE);
                assert_eq!(tables.check_collapse(own, PageSize::Size2M, part), Err(obstacle), "page {page}");
                let after = check(allocator, context);
                assert_eq!((before.leaves, before.tables), (after.leaves, after.tables));
                assert_eq!(
                    [
                        leaf_frames(machine, context, GIB + 5 * PAGE),
                        leaf_frames(machine, context, GIB + LARGE + 5 * PAGE)
                    ],
                    [1; 2]
                );
                // The other one can be collapsed.
                let other = VirtAddr(GIB + (1 - page / 512) * LARGE);
                assert_eq!(tables.check_collapse(other, PageSize::Size2M, range(other.0, LARGE)), Ok(()));
                assert_eq!(collapse_tables(allocator, context, other, 1), Ok(1));
                assert_eq!(collapse_tables(allocator, context, other, 1), Ok(0), "it is large already");
                unmap_all(allocator, context, range(GIB, 2 * LARGE));
                two.iter().for_each(|&block| {
                    allocator.release_raw(FrameRange::folio(block, BLOCK));
                });
            });
        }
    }
}

/// A gigabyte that is mapped by leaves of all sizes becomes one leaf by one exchange and one flush; 64 tables
/// by one flush.
#[test]
fn a_gigantic_leaf_comes_in_the_place_of_whatever_maps_its_folio() {
    with_space(gigantic_machine(), |machine, allocator, context| {
        let order = Order::GIGANTIC;
        let first = allocator.alloc_raw(Gfp::USER, order).expect("a gigabyte");
        let at = VirtAddr(4 * GIB);
        let tables = page_tables(allocator, context);
        for block in 0..512 {
            let (addr, frame) = (at.add(block * LARGE), first.add(block * 512));
            if block % 3 == 1 {
                tables.map_large_raw(addr, frame, PageSize::Size2M, written()).unwrap();
            } else {
                map_small(allocator, context, addr, frame, 1, written());
            }
        }
        let extent = range(at.0, GIB);
        assert_eq!(tables.check_collapse(at, PageSize::Size1G, extent), Ok(()));
        running(machine, context, &[0, 1], || {
            machine.reset_counters();
            assert_eq!(collapse_tables(allocator, context, at, 64), Ok(43));
            assert_eq!(machine.counters().flushes_remote, 1);
            machine.reset_counters();
            let mut gather = MmuGather::new(allocator, context);
            assert_eq!(tables.collapse_whole(at, &mut gather), Ok(true));
            gather.finish();
            assert_eq!((machine.counters().flushes_local, machine.counters().flushes_remote), (1, 1));
        });
        assert_eq!(leaf_frames(machine, context, at.0 + 77 * PAGE), 1 << 18);
        assert_eq!([0, 511, 512, 262_143].map(|frame| allocator.counts().mapcount(first.add(frame))), [1; 4]);
        assert_eq!(check(allocator, context).resident.anon, 1 << 18);
        assert_eq!(context.tables(), 2, "the tables are back");
        // Split and collapsed again, in stages.
        tables.split_at(at.add(PAGE)).unwrap();
        assert_eq!(leaf_frames(machine, context, at.0), 1);
        assert_eq!(leaf_frames(machine, context, at.0 + LARGE), 512);
        assert_eq!(collapse_tables(allocator, context, at, 1), Ok(1));
        assert_eq!(tables.collapse_gigantic(at), Ok(true));
        assert_eq!(tables.collapse_gigantic(at), Ok(false));
        unmap_all(allocator, context, extent);
        assert_eq!(allocator.memory_info().used, used(allocator));
    });
}

/// 512 adjacent folios are not one folio: a leaf over all of them would outlive each.
#[test]
fn a_leaf_is_never_larger_than_its_folio() {
    with_space(gigantic_machine(), |machine, allocator, context| {
        let first = allocator.alloc_contig_raw(Gfp::USER, 512, 512).expect("a gigabyte");
        let (at, tables) = (VirtAddr(4 * GIB), page_tables(allocator, context));
        for block in 0..512 {
            let flags = written();
            tables
                .map_large_raw(at.add(block * LARGE), first.add(block * 512), PageSize::Size2M, flags)
                .unwrap();
        }
        assert_eq!(tables.collapse_gigantic(at), Ok(false));
        assert_eq!(leaf_frames(machine, context, at.0), 512);
        // Nor are single adjacent frames a folio of 2 MiB.
        let part = range(GIB, LARGE);
        populate(machine, allocator, context, part, Order::FRAME);
        assert_eq!(tables.collapse(VirtAddr(GIB)), Ok(false));
        assert_eq!(tables.collapse(VirtAddr(GIB + PAGE)), Err(MapError::Unaligned));
        unmap_all(allocator, context, part);
        assert_eq!(allocator.lists().stat(Stat::ThpSplitPage), 0);
    });
}

/// Memory that is freed as known to be zero is handed out uncleared, so each of the leaves must have mapped
/// zeroes.
#[test]
fn a_gigantic_leaf_is_known_to_be_zero_if_all_leaves_in_its_place_were() {
    with_space(gigantic_machine(), |_, allocator, context| {
        let (at, tables) = (VirtAddr(4 * GIB), page_tables(allocator, context));
        let known_zero = || allocator.zone_info().map(|zone| zone.zeroed).sum::<u64>();
        for zeroes in [0, 511, 512] {
            let first = allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).expect("a gigabyte");
            for block in 0..512 {
                let flags = if block < zeroes { clean() | EntryFlags::ZEROED } else { clean() };
                let (addr, frame) = (at.add(block * LARGE), first.add(block * 512));
                tables.map_large_raw(addr, frame, PageSize::Size2M, flags).unwrap();
            }
            assert_eq!(tables.collapse_gigantic(at), Ok(true));
            let before = known_zero();
            unmap_all(allocator, context, range(at.0, GIB));
            assert_eq!(known_zero() >= before + (1 << 18), zeroes == 512, "{zeroes} were zero");
        }
    });
}
