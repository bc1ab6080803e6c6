//! Frames that cannot move stay in few areas of 1 GiB.

use hosted::raw::{RawCounts, RawPages};
use std::collections::BTreeSet;

use hosted::{Hosted, HostedConfig, MemoryRange};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::limits::{AREA_REST, AREAS_TRIED, BLOCK_FRAMES, SECTION_BLOCKS};
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator, Urgency, Verdict};
use quire::platform::Context;
use quire::stats::Stat;
use testkit::{order, ranges_of};

pub(super) const GIB: u64 = 1 << 30;
const AREA_FRAMES: u64 = GIB / 4096;
/// What fills memory, eight frames each.
const FOLIO: u8 = 3;
const USER: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

pub(super) type Pages<'m> = PageAllocator<'m, Hosted>;

/// A machine with so many areas above 4 GiB. The first contains the tables.
pub(super) fn with_areas<R>(areas: u64, test: impl FnOnce(&Pages<'_>) -> R) -> R {
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

/// Frees what a storm allocated, and the folios that were kept in use.
fn free_all(pages: &Pages<'_>, frames: Vec<Frame>, kept: &[Frame]) {
    frames.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
    pages.free_bulk_raw(order(FOLIO), kept).unwrap();
    pages.lists().drain_all();
    pages.validate().unwrap();
}

fn areas_of(frames: &[Frame]) -> BTreeSet<u64> {
    frames.iter().map(|frame| frame.0 / AREA_FRAMES).collect()
}

/// The complete areas, and those of them that are tainted.
pub(super) fn counted(pages: &Pages<'_>) -> (u64, u64) {
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
        assert_eq!(counted(pages).1, 0);
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
            let mut inside = kept.split_off(&range.start);
            kept.append(&mut inside.split_off(&range.end()));
            for frame in inside {
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
fn the_area_of_such_blocks_can_be_removed_and_added() {
    after_a_storm(|pages, area, leaves| {
        pages.remove_memory(area, leaves).unwrap();
        pages.validate().unwrap();
        assert_eq!(counted(pages), (0, 0), "memory that is not there is no page");
        let half = area.count / 2;
        for (part, complete) in [(area.start, 0), (area.start.add(half), 1)] {
            pages.add_memory_raw(FrameRange::new(part, half), false).unwrap();
            assert_eq!(counted(pages), (complete, 0));
        }
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

/// A large block of frames that cannot move comes and goes, where all tainted areas are full: its CPU's free block
/// serves it each time, without being made whole and split again.
#[test]
fn a_block_that_comes_and_goes_in_an_untainted_area_stays_in_pieces() {
    with_areas(3, |pages| {
        // Both areas behind the one with the tables are free, and all else is in use.
        let mut kept = age(pages, |_| false);
        let (free, rest): (Vec<_>, Vec<_>) = kept.iter().partition(|frame| frame.0 / AREA_FRAMES > 4);
        kept = rest;
        pages.free_bulk_raw(order(FOLIO), &free).unwrap();
        pages.lists().drain_all();
        let stat = |which| pages.lists().stat(which);
        let counts = || [Stat::BlockSplit, Stat::BlockMerge, Stat::MobilityScanned].map(stat);
        let pair = || {
            // Not by the lists, which would keep it.
            let mut frame = [Frame(0)];
            assert_eq!(pages.alloc_bulk_raw(Gfp::KERNEL, order(8), &mut frame), 1);
            assert_eq!(counted(pages), (2, 1));
            pages.free_bulk_raw(order(8), &frame).unwrap();
            frame[0]
        };
        let first = pair();
        assert_eq!(counted(pages), (2, 0));
        let [splits, merges, scanned] = counts();
        (0..100).for_each(|_| assert_eq!(pair(), first));
        // The search that finds the free block looks at the tainted area before. Later ones find it in the index.
        let looks = SECTION_BLOCKS as u64;
        assert_eq!(counts(), [splits, merges, scanned + looks], "splits, merges, and records that were read");
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
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

/// A free block that a CPU keeps is no reason to taint the area that it is in.
#[test]
fn spares_of_untainted_areas_are_left_to_movable_frames() {
    let cpus = 4;
    let ranges = vec![MemoryRange::new(4 * GIB, (1 + cpus as u64) * GIB)];
    let machine = HostedConfig::sparse(GIB).with_ranges(ranges).with_cpus(cpus).build().unwrap();
    let config = AllocatorConfig::default();
    let pages = machine
        .run_on(CpuId(0), || hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap());
    let on = |cpu: usize, count: u64| {
        machine.run_on(CpuId(cpu as u32), || {
            let mut folios = vec![Frame(0); (count >> FOLIO) as usize];
            let got = pages.alloc_bulk_raw(USER, order(FOLIO), &mut folios);
            folios.truncate(got);
            folios
        })
    };
    let mut folios: Vec<_> = (0..cpus).flat_map(|cpu| on(cpu, AREA_FRAMES)).collect();
    folios.extend(on(0, AREA_FRAMES));
    let frees = |frame: &Frame| match frame.0 / AREA_FRAMES {
        4 => frame.index_in_block() >> FOLIO & 1 == 1,
        // The first becomes the spare of the CPU's shard, unless that has one.
        _ => frame.block().0 % SECTION_BLOCKS as u32 / 4 == 64,
    };
    let (mut freed, kept): (Vec<_>, Vec<_>) = folios.into_iter().partition(frees);
    machine.run_on(CpuId(0), || {
        // Not drained, which makes spares whole: the first area is last, so no folio of another is on a list.
        freed.sort_unstable_by_key(|frame| (frame.0 / AREA_FRAMES == 4, *frame));
        pages.free_bulk_raw(order(FOLIO), &freed).unwrap();
        assert_eq!(counted(&pages), (cpus as u64, 0));
        // What is free in pieces outside of the first area, beyond the rest behind the tables.
        let info = pages.memory_info();
        let whole: u64 = pages.zone_info().map(|zone| zone.whole_blocks).sum();
        let halves = freed.iter().filter(|frame| frame.0 / AREA_FRAMES == 4).count() << FOLIO;
        let spares = info.available() - whole * BLOCK_FRAMES as u64 - halves as u64;
        assert!(spares >= 2 * (BLOCK_FRAMES as u64 - 2), "{spares} frames of free blocks in pieces");
    });
    let frames = (0..cpus).fold(Vec::new(), |mut frames, cpu| {
        frames.extend(machine.run_on(CpuId(cpu as u32), || storm(&pages, 2000)));
        frames
    });
    machine.run_on(CpuId(0), || {
        assert_eq!(areas_of(&frames), BTreeSet::from([4]));
        assert_eq!(counted(&pages), (cpus as u64, 0));
        free_all(&pages, frames, &kept);
    });
}

/// Where each block has a few free frames, a search does not read all records to find the emptiest.
#[test]
fn blocks_with_few_free_frames_are_found_one_after_the_other() {
    let areas = 2 * AREAS_TRIED as u64;
    with_areas(areas, |pages| {
        let kept = age(pages, |number| [5, 20, 40].contains(&number));
        let blocks = areas * SECTION_BLOCKS as u64;
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        let mut frames = vec![Frame(0); pages.memory_info().free as usize];
        let got = pages.alloc_bulk_raw(gfp, Order::FRAME, &mut frames);
        frames.truncate(got);
        let searches = blocks / u64::from(AREA_REST) + 2 * areas;
        let most = (AREAS_TRIED * SECTION_BLOCKS) as u64;
        let scanned = pages.lists().stat(Stat::MobilityScanned);
        assert!(scanned > blocks / 2, "{scanned}");
        assert!(scanned < searches * most + 4 * blocks, "{scanned} records of {blocks}");
        pages.free_bulk_raw(Order::FRAME, &frames).unwrap();
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
    });
}

/// That no block has a large free group says nothing about smaller ones.
#[test]
fn a_search_for_less_does_not_rest() {
    with_areas(4, |pages| {
        let kept = age(pages, |number| number % 2 == 0);
        let mut frames = Vec::new();
        for _ in 0..40 {
            let large = pages.alloc_raw(Gfp::KERNEL, order(FOLIO + 1));
            assert_eq!(large, Err(AllocError::OutOfMemory));
            frames.extend(storm(pages, 1000));
        }
        assert_eq!(areas_of(&frames), BTreeSet::from([4]));
        free_all(pages, frames, &kept);
    });
}

/// Nor do searches for little where blocks have only a little: a large request does not end these.
#[test]
fn searches_for_little_go_on_beside_larger_ones() {
    with_areas(4, |pages| {
        let kept = age(pages, |number| [5, 20, 40].contains(&number));
        let mut frames = Vec::new();
        for _ in 0..40 {
            let large = pages.alloc_raw(Gfp::KERNEL, order(FOLIO + 1));
            assert_eq!(large, Err(AllocError::OutOfMemory));
            // The area with the tables has three times as many.
            frames.extend(storm(pages, AREA_FRAMES / BLOCK_FRAMES as u64 * 3 / 16));
        }
        assert_eq!(areas_of(&frames), BTreeSet::from([4]));
        free_all(pages, frames, &kept);
    });
}

/// Four areas that can be no page are full, and only a fifth behind a complete one has whole blocks.
#[test]
fn whole_blocks_of_tainted_areas_come_first_however_many_there_are() {
    let hole = |area| MemoryRange::new(area * GIB, GIB / 2);
    // The largest range contains the tables.
    let ranges = vec![
        MemoryRange::new(4 * GIB, GIB * 3 / 2),
        hole(6),
        hole(7),
        MemoryRange::new(8 * GIB, GIB),
        hole(9),
    ];
    let machine = HostedConfig::sparse(GIB).with_ranges(ranges).build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig::default();
        let pages = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
        let mut folios = vec![Frame(0); (pages.memory_info().free >> FOLIO) as usize];
        let got = pages.alloc_bulk_raw(USER, order(FOLIO), &mut folios);
        folios.truncate(got);
        let (kept, freed): (Vec<_>, Vec<_>) = folios.into_iter().partition(|frame| frame.0 / AREA_FRAMES < 8);
        pages.free_bulk_raw(order(FOLIO), &freed).unwrap();
        pages.lists().drain_all();
        assert_eq!(counted(&pages), (1, 0));
        let frames = storm(&pages, 2000);
        assert_eq!(areas_of(&frames), BTreeSet::from([9]));
        free_all(&pages, frames, &kept);
    });
}

#[test]
fn a_block_that_cannot_be_whole_keeps_its_mark() {
    with_areas(2, |pages| {
        let kept = age(pages, |number| number % 2 == 0);
        let frames = storm(pages, AREA_FRAMES / 4 * 3);
        let bad = *frames.iter().find(|frame| frame.0 / AREA_FRAMES == 5).unwrap();
        frames.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
        assert_eq!(pages.condemn(bad), Verdict::Lost);
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
        pages.lists().drain_all();
        assert_eq!(counted(pages), (1, 1));
        // Movable frames fill all of the block that is free, and leave it.
        let kept = age(pages, |_| false);
        assert!(kept.iter().any(|frame| frame.block() == bad.block()));
        assert_eq!(counted(pages), (1, 1));
        pages.free_bulk_raw(order(FOLIO), &kept).unwrap();
        pages.lists().drain_all();
        assert_eq!(counted(pages), (1, 1));
    });
}

/// A search in an interrupt reads the records of one area, however many are tainted.
#[test]
fn an_interrupt_looks_at_one_area() {
    with_areas(3, |pages| {
        let kept = age(pages, |number| number == 5);
        // All that is free in the area with the tables, and some of the next one.
        let frames = storm(pages, SECTION_BLOCKS as u64 * 8 + 100);
        assert!(counted(pages).1 > 0, "two areas are tainted with the first");
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL };
        let mut folios = [Frame(0); 2 * AREA_REST as usize];
        let scanned = folios.iter_mut().map(|folio| {
            let before = pages.lists().stat(Stat::MobilityScanned);
            let got = pages.platform().interrupt(Context::HardInterrupt, || {
                pages.alloc_bulk_raw(gfp, order(FOLIO), std::slice::from_mut(folio))
            });
            assert_eq!(got, 1);
            pages.lists().stat(Stat::MobilityScanned) - before
        });
        assert_eq!(scanned.max(), Some(SECTION_BLOCKS as u64));
        pages.free_bulk_raw(order(FOLIO), &folios).unwrap();
        free_all(pages, frames, &kept);
    });
}
