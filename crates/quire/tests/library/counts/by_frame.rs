//! Map counts where each frame of a folio has a counter of its own, which is changed without a lock.

use hosted::HostedConfig;
use hosted::raw::{RawCounts, RawPages};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, Contents, CountScheme, Gfp};

use super::{Allocator, BLOCK, MIB, count_frames, map, unmap};
use testkit::ranges_of;

fn by_frame(bytes: u64, test: impl FnOnce(&Allocator<'_>)) {
    counting(CountScheme::PerFrame, bytes, test);
}

fn counting(counts: CountScheme, bytes: u64, test: impl FnOnce(&Allocator<'_>)) {
    let machine = HostedConfig { clearing: false, ..HostedConfig::new(bytes) }.build().unwrap();
    machine.run_on(CpuId(0), || {
        let config = AllocatorConfig { counts, ..AllocatorConfig::default() };
        test(&hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap());
    });
}

/// Where each frame has its own counter, a leaf of 2 MiB of a larger folio that was mapped in pieces changes
/// 512 of them. It is one leaf all the same.
#[test]
fn a_large_leaf_that_is_counted_by_frame_is_one_leaf() {
    by_frame((2 << 30) + 64 * MIB, |allocator| {
        let first = allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap();
        let block = first.add(3 * BLOCK);
        map(allocator, FrameRange::new(block.add(5), 10));
        allocator.counts().counter().map_large(block, PageSize::Size2M);
        let maps = allocator.counts().folio_maps(first).unwrap();
        assert_eq!((maps.mapcount, maps.entire, maps.mapped), (11, Some(0), Some(BLOCK)));
        assert_eq!(unmap(allocator, FrameRange::new(block.add(5), 10)), 0);
        assert_eq!(allocator.counts().folio_maps(first).unwrap().mapcount, 1);
        let freed = allocator.counts().counter().unmap_large_raw(block, PageSize::Size2M, Contents::Unknown);
        assert_eq!(freed, Order::GIGANTIC.frames());
        allocator.validate().unwrap();
    });
}

/// Other CPUs may change the counters at any moment: they are freed with the folio, not with the last count.
#[test]
fn numbers_in_which_nothing_is_counted_stay_as_long_as_their_folio() {
    by_frame(64 * MIB, |allocator| {
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.counts().prepare_counts(start).unwrap();
        let held = count_frames(allocator);
        assert!(held > 0);
        allocator.counts().forget_counts(start);
        assert_eq!(count_frames(allocator), held);
        let whole = FrameRange::folio(start, Order::BLOCK);
        allocator.counts().counter().map_large(start, PageSize::Size2M);
        map(allocator, FrameRange::new(start.add(7), 1));
        assert_eq!(unmap(allocator, FrameRange::new(start.add(7), 1)), 0);
        assert_eq!(count_frames(allocator), held);
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(start, PageSize::Size2M, Contents::Unknown),
            BLOCK
        );
        assert_eq!(allocator.counts().folio_maps(whole.start), None);
        allocator.lists().drain_local();
        assert_eq!((count_frames(allocator), allocator.memory_info().used), (0, 0));
    });
}

/// A gather makes one run of leaves onto consecutive frames, whose folios can count in different ways. The way of the
/// first frame's folio counted for all.
#[test]
fn a_run_across_folios_counts_each_in_its_own_way() {
    for counts in CountScheme::ALL {
        counting(counts, 64 * MIB, |allocator| {
            let blocks = allocator.alloc_contig_raw(Gfp::USER, 3, 1).unwrap();
            allocator.free_contig_raw(blocks, 3).unwrap();
            // A whole block between two halves, which are in pieces.
            let run = FrameRange::new(blocks.add(BLOCK / 2), 2 * BLOCK);
            assert_eq!(allocator.alloc_at(run).unwrap().into_raw(), run);
            let whole = blocks.add(BLOCK);
            assert_eq!(allocator.counts().folio_maps(whole).unwrap().folio, FrameRange::new(whole, BLOCK));
            for (maps, of_whole) in [(1, BLOCK), (2, 2 * BLOCK)] {
                map(allocator, run);
                let count = |frame: Frame| allocator.counts().folio_maps(frame).unwrap().mapcount;
                let edges = [run.start, whole.add(7), Frame(run.end().0 - 1)].map(count);
                assert_eq!(edges, [maps, of_whole, maps], "{counts:?}");
            }
            assert_eq!(unmap(allocator, run), 0);
            assert_eq!(unmap(allocator, run), run.count, "{counts:?}");
            allocator.lists().drain_local();
            allocator.validate().unwrap();
        });
    }
}

/// The example of the proposal: a folio of 512 pages that two leaves of 2 MiB and one of 4 KiB map has three
/// leaves, and 1025 pages are mapped. Each frame counts as their average, rounded, and never as 0.
#[test]
fn where_pages_are_counted_together_a_frame_counts_as_the_average() {
    counting(CountScheme::TotalMapped, 64 * MIB, |allocator| {
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        let counts = || {
            (
                allocator.counts().folio_maps(start).unwrap().mapcount,
                [0, 511].map(|at| allocator.counts().mapcount(start.add(at))),
            )
        };
        let large = || allocator.counts().counter().map_large(start, PageSize::Size2M);
        let remove = |pages: u64| unmap(allocator, FrameRange::new(start, pages));
        map(allocator, FrameRange::new(start, 1));
        assert_eq!(counts(), (1, [1, 1]), "one page of 512, which is 0 rounded");
        large();
        large();
        assert_eq!(counts(), (3, [2, 2]));
        map(allocator, FrameRange::new(start, 254));
        assert_eq!(counts(), (257, [2, 2]), "2 and 255/512");
        map(allocator, FrameRange::new(start, 1));
        assert_eq!(counts(), (258, [3, 3]), "2 and 256/512");
        assert_eq!(remove(254) + remove(1) + remove(1), 0);
        for left in [1, 0] {
            let freed =
                allocator.counts().counter().unmap_large_raw(start, PageSize::Size2M, Contents::Unknown);
            assert_eq!(freed, if left == 0 { BLOCK } else { 0 });
        }
        allocator.lists().drain_local();
        allocator.validate().unwrap();
    });
}
