//! Allocated memory is a value: what it allows, and what is refused when `unsafe` code breaks a contract.

use hosted::raw::{RawMachine, RawPages};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::arch::Entry;
use quire::error::{FreeError, SplitError};
use quire::page_alloc::{Contents, Counter, Folio, Gfp, PageAllocator};
use quire::platform::TouchHint;
use testkit::with_allocator;

const MIB: u64 = 1 << 20;

#[test]
fn a_folio_is_cleared_copied_and_freed_by_its_owner() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let mut folio = pages.alloc(Gfp::KERNEL, Order::FRAME).unwrap();
        pages.frames().clear(&mut folio, TouchHint::Soon);
        let mut copy = pages.alloc(Gfp::KERNEL, Order::FRAME).unwrap();
        pages.frames().copy(&folio, &mut copy, TouchHint::Soon);
        assert_eq!(format!("{folio:?}"), format!("Folio({:?}, {:?})", folio.frame(), Order::FRAME));
        assert_ne!(folio, copy);
        pages.free(folio).unwrap();
        pages.requests().free_zeroed(copy).unwrap();
        pages.validate().unwrap();
    });
}

/// A folio of any size, with a pattern, is copied onto a larger one, whose other frames stay as they are.
#[test]
fn a_long_folio_is_copied_onto_a_longer_one() {
    let config = HostedConfig { clearing: true, ..HostedConfig::new(64 * MIB) };
    with_allocator(config, |machine, pages| {
        let from = pages.alloc(Gfp::KERNEL, Order::BLOCK).unwrap();
        let mut to = pages.alloc(Gfp::KERNEL, Order::new(10).unwrap()).unwrap();
        let word = |frame: Frame| machine.load_entry_raw(frame, 511).bits();
        for (seed, folio) in [(1, &from), (1 << 32, &to)] {
            let frames = folio.frames();
            for at in 0..frames.count {
                machine.store_entry_raw(frames.start.add(at), 511, Entry::from_bits(seed + at));
            }
        }
        pages.frames().copy_extent(&from, &mut to, TouchHint::Soon).unwrap();
        for at in 0..1024 {
            let expected = if at < 512 { 1 + at } else { (1 << 32) + at };
            assert_eq!(word(to.frame().add(at)), expected, "frame {at}");
        }
        pages.free(from).unwrap();
        pages.free(to).unwrap();
    });
}

#[test]
#[should_panic = "is longer than"]
fn a_copy_onto_a_shorter_folio_is_refused() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages: &PageAllocator<'_, Hosted>| {
        let from = pages.alloc(Gfp::USER, Order::new(1).unwrap()).unwrap();
        let mut to = pages.alloc(Gfp::USER, Order::FRAME).unwrap();
        pages.frames().copy(&from, &mut to, TouchHint::Soon);
    });
}

/// Its descriptor would stand where its block says which folios it has.
#[test]
#[should_panic = "is smaller than a block"]
fn a_small_folio_becomes_no_page_of_a_pool() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages: &PageAllocator<'_, Hosted>| {
        pages.frames().make_huge(pages.alloc(Gfp::USER, Order::new(8).unwrap()).unwrap());
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_folio_of_another_allocator_is_refused() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let mine = pages.alloc(Gfp::USER, Order::FRAME).unwrap();
        let (used, number) = (pages.memory_info().used, mine.frame());
        with_allocator(HostedConfig::new(64 * MIB), |_, others| {
            // The other allocator hands out the same number.
            let theirs = others.alloc(Gfp::USER, Order::FRAME).unwrap();
            assert_eq!(theirs.frame(), number);
            assert_eq!(pages.free(theirs), Err(FreeError::Foreign));
            let run = others.alloc_contig(Gfp::USER, 2, 1).unwrap();
            assert_eq!(pages.free_contig(run), Err(FreeError::Foreign));
            let mut numbers = [Frame(0); 3];
            let folios = others.alloc_bulk(Gfp::USER, Order::FRAME, &mut numbers);
            assert_eq!(pages.free_bulk(folios), Err((0, FreeError::Foreign)));
        });
        assert_eq!(pages.memory_info().used, used);
        pages.free(mine).unwrap();
        pages.validate().unwrap();
    });
}

#[test]
fn a_refused_folio_harms_no_neighbour() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
        let frame = folio.frame();
        // Against the contract: a leaf maps the folio whose value still exists.
        pages.counts().counter().map_large(frame, PageSize::Size2M);
        assert_eq!(pages.free(folio), Err(FreeError::InUse));
        assert_eq!(pages.counts().mapcount(frame), 1);
        // A folio that is too large by number, a part of one, and a free one.
        assert_eq!(pages.free_raw(frame, Order::new(10).unwrap()), Err(FreeError::WrongOrder));
        assert_eq!(pages.free_raw(frame.add(8), Order::FRAME), Err(FreeError::WrongOrder));
        let small = pages.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        pages.free_raw(small, Order::FRAME).unwrap();
        assert_eq!(pages.free_raw(small, Order::FRAME), Err(FreeError::DoubleFree));
        pages.validate().unwrap();
    });
}

#[test]
fn what_is_handed_over_is_freed_by_its_last_leaf() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let used = pages.memory_info().used;
        let folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
        let mut counter = pages.counts().counter();
        let frame = folio.into_raw();
        counter.map_large(frame, PageSize::Size2M);
        let freed = unmap(&mut counter, frame);
        drop(counter);
        assert_eq!((freed, pages.memory_info().used), (512, used));
    });
}

fn unmap(counter: &mut Counter<'_, '_, Hosted>, frame: Frame) -> u64 {
    hosted::raw::RawCounts::unmap_large_raw(counter, frame, PageSize::Size2M, Contents::Unknown)
}

#[test]
fn the_parts_of_a_split_folio_are_owned() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let used = pages.memory_info().used;
        let folio = pages.alloc(Gfp::USER, Order::new(4).unwrap()).unwrap();
        let parts = pages.split(folio, Order::FRAME).unwrap();
        let (first, rest) = parts.split_at(5);
        assert_eq!((first.frames().count, rest.frames().count), (5, 11));
        pages.free_range(first).unwrap();
        pages.free_range(rest).unwrap();
        assert_eq!(pages.memory_info().used, used);
        // A folio that is mapped as a whole is not split, and its value is returned.
        let folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
        pages.counts().counter().map_large(folio.frame(), PageSize::Size2M);
        let (run, why) = pages.split(folio, Order::FRAME).unwrap_err();
        assert_eq!(why, SplitError::InUse);
        assert_eq!(unmap(&mut pages.counts().counter(), run.into_raw().start), 512);
        pages.validate().unwrap();
    });
}

#[test]
fn bulk_hands_out_values() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages| {
        let used = pages.memory_info().used;
        let mut numbers = [Frame(0); 20];
        let mut folios = pages.alloc_bulk(Gfp::USER, Order::FRAME, &mut numbers);
        assert_eq!((folios.len(), folios.order()), (20, Order::FRAME));
        let kept: Vec<Folio> = folios.by_ref().take(3).collect();
        pages.free_bulk(folios).unwrap();
        kept.into_iter().for_each(|folio| pages.free(folio).unwrap());
        let mut slots = [const { None }; 5];
        assert_eq!(pages.requests().fill_bulk(Gfp::USER, Order::FRAME, &mut slots), 5);
        slots.into_iter().flatten().for_each(|folio| pages.free(folio).unwrap());
        assert_eq!(pages.memory_info().used, used);
    });
}

#[test]
#[should_panic = "reaches beyond"]
fn an_extent_beyond_the_folio_is_refused() {
    with_allocator(HostedConfig::new(64 * MIB), |_, pages: &PageAllocator<'_, Hosted>| {
        let mut folio = pages.alloc(Gfp::USER, Order::BLOCK).unwrap();
        let beyond = FrameRange::new(folio.frame().add(500), 13);
        let extent = quire::clear::Extent::new(beyond, TouchHint::Soon);
        let _ = pages.frames().clear_extent(&mut folio, &extent);
    });
}
