//! A collapse in place while a leaf of the range moves to another frame: it is reported as the obstacle, and
//! nothing has changed (invariant 11).

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::page_alloc::Gfp;
use quire::pgtable::{Obstacle, Relocation};
use quire::tlb::{MmContext, MmuGather};

use crate::pgtable::support::*;

const LARGE: u64 = 2 * MIB;
const PAGE: u64 = 4096;
const BASE: VirtAddr = VirtAddr(4 * GIB);

/// Every leaf and table, and how often each frame of the folio is mapped.
fn seen(
    machine: &Hosted,
    allocator: &Allocator<'_>,
    context: &MmContext,
    folio: FrameRange,
) -> impl PartialEq {
    let counts: Vec<u64> =
        (folio.start.0..folio.end().0).map(|frame| allocator.counts().mapcount(Frame(frame))).collect();
    (machine.leaves(context.root()), machine.tables(context.root()), counts)
}

/// Each way to collapse the range to leaves of `size`, and each survey of it, reports the moving leaf.
fn in_the_way(allocator: &Allocator<'_>, context: &MmContext, moving: VirtAddr, size: PageSize) {
    let tables = page_tables(allocator, context);
    let large = moving.align_down(LARGE);
    let mut gather = MmuGather::new(allocator, context);
    for checked in [true, false] {
        let part = VirtRange::from_len(large, LARGE);
        assert_eq!(tables.collapse_tables(part, checked, &mut gather), Err(Obstacle::Busy));
    }
    let parts = [VirtRange::from_len(BASE, size.bytes()), VirtRange::from_len(large, LARGE)];
    for part in parts {
        assert_eq!(tables.check_collapse(BASE, size, part), Err(Obstacle::Busy));
    }
    if size == PageSize::Size1G {
        assert_eq!(tables.collapse_whole(BASE, &mut gather), Err(Obstacle::Busy));
        assert_eq!(tables.collapse_gigantic(BASE), Ok(false));
    } else {
        assert_eq!(tables.collapse(BASE), Ok(false));
    }
    gather.finish();
}

/// Maps a folio of `size` by smaller leaves, moves one of them to another frame and back, and tries to
/// collapse meanwhile.
fn move_one(machine: HostedConfig, size: PageSize, at: u64, leaf: PageSize) {
    with_space(machine, |machine, allocator, context| {
        let first = allocator.alloc_raw(Gfp::USER, size.order()).expect("a folio");
        let other = allocator.alloc_raw(Gfp::USER, leaf.order()).expect("a place to move to");
        let (folio, place) = (FrameRange::folio(first, size.order()), FrameRange::folio(other, leaf.order()));
        allocator.frames().hold(place);
        let tables = page_tables(allocator, context);
        // Every third block is one leaf, and the block of the moving leaf has leaves of its size.
        for block in 0..size.frames() / 512 {
            let (addr, frame) = (BASE.add(block * LARGE), first.add(block * 512));
            let own = block == at / LARGE;
            if size == PageSize::Size1G && if own { leaf == PageSize::Size2M } else { block % 3 == 1 } {
                tables.map_large_raw(addr, frame, PageSize::Size2M, written()).unwrap();
            } else {
                tables.map_raw(addr, FrameRange::folio(frame, Order::BLOCK), written()).unwrap();
            }
        }
        let moving = BASE.add(at);
        let home = tables.lookup(moving).entry.frame();
        for to in [other, home] {
            let seen = || seen(machine, allocator, context, folio);
            let mut one = [Some(Relocation::new(moving, tables.lookup(moving).entry, to))];
            let (mut gather, mut looked) = (MmuGather::new(allocator, context), 0);
            let moved = tables.relocate_raw(&mut one, leaf, &mut gather, |_| {
                let before = seen();
                in_the_way(allocator, context, moving, size);
                assert!(before == seen(), "it refused, and something has changed");
                looked += 1;
            });
            assert_eq!((moved, looked), (Ok(1), 1));
            gather.finish();
            let before = seen();
            let collapse = || match size {
                PageSize::Size1G => tables.collapse_gigantic(BASE),
                _ => tables.collapse(BASE),
            };
            // In another frame it is not part of the folio.
            assert_eq!(collapse(), Ok(to == home));
            assert!((before == seen()) == (to == other));
        }
        let mapped = machine.probe(context.root(), moving).expect("all of it is mapped");
        assert_eq!((mapped.frame, mapped.frames), (first, size.frames()));
        check(allocator, context);
        unmap_all(allocator, context, VirtRange::from_len(BASE, size.bytes()));
        assert_eq!(allocator.release_raw(place), place.count);
    });
}

#[test]
fn a_page_that_moves_is_in_the_way() {
    for page in [1, 300, 511] {
        move_one(small_machine(), PageSize::Size2M, page * PAGE, PageSize::Size4K);
    }
}

#[test]
fn a_part_of_a_gigabyte_that_moves_is_in_the_way() {
    let machine = || HostedConfig::new(3 * GIB);
    for (at, leaf) in [(7 * LARGE + 9 * PAGE, PageSize::Size4K), (7 * LARGE, PageSize::Size2M)] {
        move_one(machine(), PageSize::Size1G, at, leaf);
    }
}

/// The wait was a call within a call, and a kernel's stack overflowed.
#[test]
fn a_lookup_that_waits_long_needs_no_more_stack() {
    const TURNS: u64 = 20_000;
    with_space(small_machine(), |machine, allocator, context| {
        let first = allocator.alloc_raw(Gfp::USER, Order::new(0).unwrap()).expect("a page");
        let other = allocator.alloc_raw(Gfp::USER, Order::new(0).unwrap()).expect("a place to move to");
        let place = FrameRange::new(other, 1);
        allocator.frames().hold(place);
        let tables = page_tables(allocator, context);
        tables.map_raw(BASE, FrameRange::new(first, 1), written()).unwrap();
        let mut one = [Some(Relocation::new(BASE, tables.lookup(BASE).entry, other))];
        let mut gather = MmuGather::new(allocator, context);
        std::thread::scope(|scope| {
            let moved = tables.relocate_raw(&mut one, PageSize::Size4K, &mut gather, |_| {
                let before = machine.spin_turns();
                let reader = std::thread::Builder::new().stack_size(256 << 10);
                let look = move || page_tables(allocator, context).lookup(BASE).entry.frame();
                reader.spawn_scoped(scope, move || assert_eq!(look(), other)).expect("a thread");
                while machine.spin_turns() < before + TURNS {
                    std::thread::yield_now();
                }
            });
            assert_eq!(moved, Ok(1));
        });
        gather.finish();
        unmap_all(allocator, context, VirtRange::from_len(BASE, PAGE));
        assert_eq!(allocator.release_raw(place), 1);
    });
}
