//! Frames that cannot move stay in few areas of 1 GiB.

use hosted::raw::{RawCounts, RawPages};
use std::collections::BTreeSet;

use hosted::{Hosted, HostedConfig, MemoryRange};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::limits::{AREA_REST, AREAS_TRIED, BLOCK_FRAMES, SECTION_BLOCKS};
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator, Urgency};
use quire::stats::Stat;
use testkit::{order, ranges_of};

const GIB: u64 = 1 << 30;
const AREA_FRAMES: u64 = GIB / 4096;
/// What fills memory, eight frames each.
const FOLIO: u8 = 3;
const USER: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

type Pages<'m> = PageAllocator<'m, Hosted>;

/// A machine with so many areas above 4 GiB. The first contains the tables.
fn with_areas<R>(areas: u64, test: impl FnOnce(&Pages<'_>) -> R) -> R {
    let ranges = vec![MemoryRange::new(4 * GIB, areas * GIB)];
    let machine = HostedConfig::sparse(GIB).with_ranges(ranges).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig::default();
        let pages = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        let result = test(&pages);
        pages.lists().drain_all();
        pages.validate().unwrap();
        result
    })
}

/// Fills memory with movable folios, then frees those that `frees` chooses by the number of each in its block.
/// Returns those in use.
fn age(pages: &Pages<'_>, frees: impl Fn(usize) -> bool) -> Vec<Frame> {
    let mut folios = vec![Frame(0); (pages.memory_info().free >> FOLIO) as usize];
    let got = pages.alloc_bulk_raw(USER, order(FOLIO), &mut folios);
    folios.truncate(got);
    // Blocks come into the index in the order in which they are freed.
    fastrand::Rng::with_seed(3).shuffle(&mut folios);
    let number = |frame: &Frame| frame.index_in_block() >> FOLIO;
    let (freed, kept): (Vec<_>, Vec<_>) = folios.into_iter().partition(|frame| frees(number(frame)));
    pages.free_bulk_raw(order(FOLIO), &freed).unwrap();
    pages.lists().drain_all();
    kept
}

/// Allocates unmovable and reclaimable frames in turn. Returns them.
fn storm(pages: &Pages<'_>, count: u64) -> Vec<Frame> {
    let gfp = |at| if at % 2 == 0 { Gfp::KERNEL } else { Gfp::RECLAIMABLE };
    (0..count).map(|at| pages.alloc_raw(gfp(at), Order::FRAME).unwrap()).collect()
}

fn areas_of(frames: &[Frame]) -> BTreeSet<u64> {
    frames.iter().map(|frame| frame.0 / AREA_FRAMES).collect()
}

/// The complete areas, and those of them that are tainted.
fn counted(pages: &Pages<'_>) -> (u64, u64) {
    let groups = pages.free_groups().next().unwrap();
    (groups.areas, groups.tainted)
}

#[test]
fn a_storm_on_aged_memory_taints_no_more_areas_than_it_fills() {
    with_areas(5, |pages| {
        let kept = age(pages, |number| number % 2 == 0);
        assert_eq!(pages.zone_info().map(|zone| zone.whole_blocks).sum::<u64>(), 0);
        assert_eq!(counted(pages), (4, 0), "the area with the tables is not complete");
        // Half of an area is free.
        let mut frames = storm(pages, AREA_FRAMES / 2 * 9 / 10);
        assert_eq!(areas_of(&frames), BTreeSet::from([4]), "the area that cannot be a page comes first");
        assert_eq!(counted(pages), (4, 0));
        frames.extend(storm(pages, AREA_FRAMES / 2));
        assert_eq!(areas_of(&frames).len(), 2);
        assert_eq!(counted(pages), (4, 1));
        pages.validate().unwrap();
        // Movable folios that come and go change nothing.
        let more: Vec<_> = (0..10_000).map_while(|_| pages.alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
        more.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
        let few = storm(pages, 1000);
        assert!(areas_of(&few).is_subset(&areas_of(&frames)));
        frames.extend(few);
        for frame in frames {
            pages.free_raw(frame, Order::FRAME).unwrap();
        }
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
        pages.lists().drain_all();
        // The spare of the CPU's shard is all free, and may count.
        assert!(counted(pages).1 <= 1);
        let areas = pages.alloc_contig(USER, 4 * SECTION_BLOCKS as u32, 1).unwrap();
        assert_eq!(counted(pages), (4, 0));
        pages.free_range(areas).unwrap();
    });
}

/// The area of a storm on memory a quarter full of mapped folios, after what the storm allocated is free again.
fn after_a_storm(test: impl FnOnce(&Pages<'_>, FrameRange, &mut dyn FnMut(FrameRange))) {
    with_areas(2, |pages| {
        let kept = age(pages, |number| number % 4 != 0);
        let folio = |frame: &Frame| FrameRange::folio(*frame, order(FOLIO));
        kept.iter().for_each(|frame| pages.counts().counter().map(folio(frame)).unwrap());
        // The area with the tables is full, and half of the other's free frames are taken.
        let frames = storm(pages, AREA_FRAMES / 8 * 9);
        assert_eq!(counted(pages), (1, 1));
        frames.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
        pages.lists().drain_all();
        let mut kept: BTreeSet<_> = kept.into_iter().collect();
        let mut leaves = |range: FrameRange| {
            for frame in kept.extract_if(range.start..range.end(), |_| true) {
                pages.counts().counter().unmap_raw(folio(&frame));
            }
        };
        let area = FrameRange::new(Frame(5 * AREA_FRAMES), AREA_FRAMES);
        test(pages, area, &mut leaves);
        leaves(FrameRange::new(Frame(0), 6 * AREA_FRAMES));
    });
}

#[test]
fn blocks_that_changed_over_can_be_emptied() {
    after_a_storm(|pages, area, leaves| {
        let some = storm(pages, AREA_FRAMES / 8 * 9);
        let stays = *some.iter().find(|&&frame| area.contains(frame)).unwrap();
        some.iter()
            .filter(|&&frame| frame != stays)
            .for_each(|&frame| pages.free_raw(frame, Order::FRAME).unwrap());
        let refused =
            pages.alloc_contig_moving(USER, SECTION_BLOCKS as u32, 512, |_| panic!("one cannot move"));
        assert_eq!(refused.map(|_| ()), Err(AllocError::OutOfMemory));
        pages.free_raw(stays, Order::FRAME).unwrap();
        let run = pages.alloc_contig_moving(USER, SECTION_BLOCKS as u32, 512, leaves).unwrap();
        assert_eq!(counted(pages), (1, 0));
        pages.free_range(run).unwrap();
    });
}

#[test]
fn and_removed() {
    after_a_storm(|pages, area, leaves| {
        pages.remove_memory(area, leaves).unwrap();
        pages.validate().unwrap();
        pages.add_memory_raw(area, false).unwrap();
    });
}

#[test]
fn on_free_memory_too() {
    with_areas(3, |pages| {
        let user: Vec<_> = (0..AREA_FRAMES / 64).map(|_| pages.alloc_raw(USER, order(6)).unwrap()).collect();
        let frames = storm(pages, 20_000);
        assert_eq!(areas_of(&frames).len(), 1);
        frames.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
        user.into_iter().for_each(|frame| pages.free_raw(frame, order(6)).unwrap());
    });
}

/// The frame of a spare comes and goes without more, and leaves the mark behind until the block is whole.
#[test]
fn a_spare_that_served_twice_is_untainted_when_it_is_whole() {
    with_areas(2, |pages| {
        for _ in 0..2 {
            // More than the rest of the block behind the tables, which comes first.
            let mut frames = [Frame(0); BLOCK_FRAMES + 1];
            assert_eq!(pages.alloc_bulk_raw(Gfp::KERNEL, Order::FRAME, &mut frames), frames.len());
            pages.free_bulk_raw(Order::FRAME, &frames).unwrap();
        }
        let whole: u64 = pages.zone_info().map(|zone| zone.whole_blocks).sum();
        let all = pages.alloc_contig(USER, whole as u32 + 1, 1).unwrap();
        pages.validate().unwrap();
        pages.free_range(all).unwrap();
    });
}

/// Where no block of a tainted area has much to give, searches for one are short and rare.
#[test]
fn a_search_in_vain_is_bounded() {
    let areas = 2 * AREAS_TRIED as u64;
    with_areas(areas, |pages| {
        let kept = age(pages, |number| number == 5);
        let mut frames = Vec::new();
        let mut scanned = Vec::new();
        let now = || pages.lists().stat(Stat::MobilityScanned);
        loop {
            let (before, mut frame) = (now(), [Frame(0)]);
            if pages.alloc_bulk_raw(
                Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL },
                order(FOLIO),
                &mut frame,
            ) == 0
            {
                break;
            }
            frames.extend(frame);
            scanned.push(now() - before);
        }
        assert_eq!(frames.len() as u64, kept.len() as u64 / (BLOCK_FRAMES as u64 / 8 - 1));
        assert_eq!(areas_of(&frames).len() as u64, areas);
        let most = (AREAS_TRIED * SECTION_BLOCKS) as u64;
        assert_eq!(scanned.iter().max(), Some(&most));
        // Each new area is looked at once.
        let searches = scanned.len() as u64 / u64::from(AREA_REST + 1) + areas + 1;
        let sum = scanned.iter().sum::<u64>();
        assert!(sum <= searches * most, "{sum} records in {searches} searches");
        pages.free_bulk_raw(order(FOLIO), &frames).unwrap();
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
    });
}
