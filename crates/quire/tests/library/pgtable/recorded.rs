//! What hardware recorded in leaves of files reaches their pages.

use hosted::raw::RawPages;
use hosted::raw::RawTables;

use fastrand::Rng;
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use quire::arch::{EntryFlags, Protection};
use quire::pgtable::Zap;
use quire::tlb::{MmuGather, ZapStrategy};

use crate::pgtable::support::*;
use testkit::{order, seed};

/// A page, the first frame of all that share its marks, and what its leaf recorded.
type Page = (VirtAddr, Frame, EntryFlags);

/// The marks of all pages of these folios: accessed, and dirty.
fn marks(allocator: &Allocator<'_>, folios: &[FrameRange]) -> Vec<(bool, bool)> {
    let frames = folios.iter().flat_map(|folio| (folio.start.0..folio.end().0).map(Frame));
    frames.map(|frame| (allocator.frames().is_accessed(frame), allocator.frames().is_dirty(frame))).collect()
}

/// Invariant 3: each way to unmap, in whatever parts, marks each page as its own leaf says, and a folio of
/// whole blocks as any of its leaves says.
#[test]
fn each_page_of_a_file_gets_what_its_leaf_recorded() {
    let first = seed(7);
    let ways = [ZapStrategy::Tables, ZapStrategy::Runs, ZapStrategy::PerPage];
    for (seed, zap) in (first..first + 4).flat_map(|seed| ways.map(|zap| (seed, zap))) {
        with_space_of(small_machine(), zap, |machine, allocator, context| {
            let (mut rng, tables) = (Rng::with_seed(seed), page_tables(allocator, context));
            let orders = [BLOCK, order(0), order(6), order(3), order(0), BLOCK, order(8), order(1), order(4)];
            let folios =
                orders.map(|order| FrameRange::folio(folio(machine, allocator, order).unwrap(), order));
            let (mut pages, mut at): (Vec<Page>, _) = (Vec::new(), VirtAddr(GIB));
            for (folio, order) in folios.into_iter().zip(orders) {
                allocator.frames().hold(folio);
                let whole = order == BLOCK;
                if whole {
                    allocator.counts().prepare_counts(folio.start).unwrap();
                }
                for frame in (folio.start.0..folio.end().0).map(Frame) {
                    let pick = |flag| if rng.u8(..3) == 0 { flag } else { EntryFlags::NONE };
                    let recorded = [EntryFlags::ACCESSED, EntryFlags::DIRTY].map(pick);
                    let recorded = recorded[0] | recorded[1];
                    let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE) | recorded;
                    tables.map_raw(at, FrameRange::new(frame, 1), flags).unwrap();
                    pages.push((at, if whole { folio.start } else { frame }, recorded));
                    at = at.add(4096);
                }
                // Anonymous memory in between has no marks.
                populate(machine, allocator, context, range(at.0, 4096), Order::FRAME);
                at = at.add(4096);
            }
            let (mut from, mut gone) = (VirtAddr(GIB), Vec::new());
            while from < at {
                let to = VirtAddr(at.0.min(from.0 + rng.u64(1..900) * 4096));
                let part = range(from.0, to.0 - from.0);
                let zap = if rng.bool() { Zap::tables(part, part) } else { Zap::leaves(part) };
                let mut gather = MmuGather::new(allocator, context);
                tables.unmap(&zap, &mut gather).unwrap();
                gather.finish();
                gone.extend(pages.iter().filter(|(page, ..)| part.contains(*page)));
                let has = |shared: Frame, flag| {
                    gone.iter().any(|&(_, frame, recorded)| frame == shared && recorded.contains(flag))
                };
                let expected: Vec<(bool, bool)> = pages
                    .iter()
                    .map(|&(_, frame, _)| (has(frame, EntryFlags::ACCESSED), has(frame, EntryFlags::DIRTY)))
                    .collect();
                assert!(marks(allocator, &folios) == expected, "seed {seed}, {zap:?}, {part:?}");
                from = to;
            }
            for folio in folios {
                allocator.take_accessed_raw(folio.start);
                assert!(!allocator.frames().is_accessed(folio.start), "it was taken");
                allocator.release_raw(folio);
            }
        });
    }
}

/// A leaf of 2 MiB marks the folio of its size, and each page of a block in small pieces.
#[test]
fn a_large_leaf_marks_all_pages_that_it_maps() {
    for detach in [false, true] {
        with_space(small_machine(), |machine, allocator, context| {
            let tables = page_tables(allocator, context);
            let whole = FrameRange::folio(folio(machine, allocator, BLOCK).unwrap(), BLOCK);
            let pieces = FrameRange::folio(folio(machine, allocator, BLOCK).unwrap(), BLOCK);
            allocator.split_raw(pieces.start, Order::FRAME).unwrap();
            let flags = EntryFlags::leaf(Protection::READ);
            for (at, frames) in [whole, pieces].into_iter().enumerate() {
                allocator.frames().hold(frames);
                let at = VirtAddr(GIB + at as u64 * 2 * MIB);
                tables.map_large_raw(at, frames.start, PageSize::Size2M, flags).unwrap();
            }
            running(machine, context, &[0], || machine.read(VirtAddr(GIB + 5 * MIB / 2), &mut [0]).unwrap());
            let mut gather = MmuGather::new(allocator, context);
            let zap = Zap { detach, ..Zap::tables(range(GIB, 4 * MIB), context.mode().user_range()) };
            tables.unmap(&zap, &mut gather).unwrap();
            assert_eq!(gather.finish().file, -1024);
            assert!(marks(allocator, &[whole]) == [(false, false); 512]);
            assert!(marks(allocator, &[pieces]) == [(true, false); 512]);
            for frames in [whole, pieces] {
                allocator.release_raw(frames);
            }
        });
    }
}
