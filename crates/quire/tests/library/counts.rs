//! Map counts of folios of whole blocks that are mapped in pieces: exact for each frame, however they are
//! stored, and in memory that is allocated only as long as something is counted (invariants 5 and M3).

mod by_frame;

use hosted::raw::{RawCounts, RawPages};
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::page_alloc::{Contents, CountError, Gfp, PageAllocator};
use quire::stats::Stat;

use testkit::{order, seed, with_allocator};

type Allocator<'p> = PageAllocator<'p, Hosted>;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 512;

fn map(allocator: &Allocator<'_>, mut run: FrameRange) {
    while let Err(CountError::Prepare { done, at }) = allocator.counts().counter().map(run) {
        allocator.counts().prepare_counts(at).expect("memory");
        run = FrameRange::new(run.start.add(done), run.count - done);
    }
}

fn unmap(allocator: &Allocator<'_>, run: FrameRange) -> u64 {
    allocator.counts().counter().unmap_raw(run)
}

/// A page of 1 GiB of a pool.
fn pool_page(allocator: &Allocator<'_>) -> Frame {
    allocator.frames().make_huge(allocator.alloc(Gfp::USER, Order::GIGANTIC).unwrap())
}

fn count_frames(allocator: &Allocator<'_>) -> u64 {
    allocator.lists().stat(Stat::NrMapCountPages)
}

fn agree(allocator: &Allocator<'_>, first: Frame, model: &[u32], large: bool) {
    for (at, &expected) in model.iter().enumerate() {
        let count = allocator.counts().mapcount(first.add(at as u64));
        assert_eq!(count, u64::from(expected) + u64::from(large), "frame {at}");
    }
    for group in (0..model.len()).step_by(64) {
        let once = |at: usize| u64::from(!large && model[group + at] == 1);
        let ones = (0..64).fold(0, |ones, at| ones | once(at) << at);
        assert_eq!(allocator.counts().mapped_once(first.add(group as u64)), ones, "group {group}");
    }
}

#[test]
fn what_is_mapped_whole_needs_no_memory_for_counts_and_pieces_a_thousandth() {
    with_allocator(
        HostedConfig { clearing: false, ..HostedConfig::new((2 << 30) + 64 * MIB) },
        |_, allocator| {
            let folio =
                FrameRange::folio(allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap(), Order::GIGANTIC);
            allocator.counts().counter().map_large(folio.start, PageSize::Size1G);
            assert_eq!(count_frames(allocator), 0);
            // In pieces: single frames in one block, a table at a time in the others.
            (0..BLOCK).for_each(|at| map(allocator, FrameRange::new(folio.start.add(at), 1)));
            map(allocator, FrameRange::new(folio.start.add(BLOCK), folio.count - BLOCK));
            assert_eq!(count_frames(allocator), 512 / 8, "512 bytes for 2 MiB");
            assert_eq!(
                [0, 511, 512, folio.count - 1].map(|at| allocator.counts().mapcount(folio.start.add(at))),
                [2; 4]
            );
            // So often that a byte is not enough.
            for _ in 1..300 {
                map(allocator, folio);
            }
            assert_eq!(allocator.counts().mapcount(folio.start.add(77)), 301);
            assert!(count_frames(allocator) * 1000 <= folio.count, "{} frames", count_frames(allocator));
            for _ in 0..300 {
                assert_eq!(unmap(allocator, folio), 0);
            }
            assert_eq!(count_frames(allocator), 0, "it is mapped whole again");
            assert_eq!(
                allocator.counts().counter().unmap_large_raw(
                    folio.start,
                    PageSize::Size1G,
                    Contents::Unknown
                ),
                folio.count
            );
        },
    );
}

/// 8192 address spaces map a gigantic page in pieces of 4 KiB: 2^31 leaves, at which the published count
/// overflowed.
#[test]
fn counts_do_not_overflow_at_8192_split_mappings() {
    const SPACES: u64 = 8200;
    with_allocator(
        HostedConfig { clearing: false, ..HostedConfig::new((2 << 30) + 64 * MIB) },
        |_, allocator| {
            let folio =
                FrameRange::folio(allocator.alloc_raw(Gfp::USER, Order::GIGANTIC).unwrap(), Order::GIGANTIC);
            for _ in 0..SPACES {
                map(allocator, folio);
            }
            // One of them lacks a page.
            assert_eq!(unmap(allocator, FrameRange::new(folio.start.add(12345), 1)), 0);
            let count = |at: u64| allocator.counts().mapcount(folio.start.add(at));
            assert_eq!([0, 12344, 12345, 12346].map(count), [SPACES, SPACES, SPACES - 1, SPACES]);
            assert!(allocator.free_raw(folio.start, Order::GIGANTIC).is_err(), "it is mapped");
            map(allocator, FrameRange::new(folio.start.add(12345), 1));
            for left in (0..SPACES).rev() {
                assert_eq!(unmap(allocator, folio), if left == 0 { folio.count } else { 0 }, "{left} left");
            }
        },
    );
}

/// Runs of every length, whole blocks, wide counts, splits, in lockstep with one number for each frame. The
/// counts of a page of a pool are in its record, in a slot, in one of four bytes, and beyond the counts of
/// tables.
#[test]
fn counts_of_a_pools_page_do_not_overflow() {
    const SPACES: u32 = 33_000;
    with_allocator(
        HostedConfig { clearing: false, ..HostedConfig::new((2 << 30) + 64 * MIB) },
        |_, allocator| {
            let first = pool_page(allocator);
            let block = FrameRange::new(first.add(3 * BLOCK), BLOCK);
            let part = |start: u64, end: u64| FrameRange::new(block.start.add(start), end - start);
            let counts = |expected: [u32; 3]| {
                let found = [0, 5, 511].map(|at| allocator.counts().mapcount(block.start.add(at)));
                assert_eq!(found, expected.map(u64::from));
            };
            (0..SPACES).for_each(|_| map(allocator, block));
            counts([SPACES; 3]);
            unmap(allocator, part(5, 9));
            counts([SPACES, SPACES - 1, SPACES]);
            [part(0, 5), part(9, BLOCK)].into_iter().for_each(|part| _ = unmap(allocator, part));
            counts([SPACES - 1; 3]);
            (1..SPACES).for_each(|_| _ = unmap(allocator, block));
            counts([0; 3]);
            assert_eq!(count_frames(allocator), 0);
            assert_eq!(
                allocator.release_raw(FrameRange::folio(first, Order::FRAME)),
                Order::GIGANTIC.frames()
            );
        },
    );
}

#[test]
fn counts_agree_with_a_number_for_each_frame() {
    for seed in seed(0)..seed(0) + 24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
            let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
            // The last frame stays mapped, or a leaf maps all of it, so that the folio is not freed.
            let large = seed / 3 % 2 == 1;
            let mut model = [0u32; BLOCK as usize];
            if large {
                allocator.counts().counter().map_large(start, PageSize::Size2M);
            } else {
                map(allocator, FrameRange::new(start.add(511), 1));
                model[511] = 1;
            }
            let kept = |at: usize| u32::from(!large && at == 511);
            let most = [3, 40, 300][seed as usize % 3];
            for step in 0..600 {
                let (from, len) = match rng.u32(..4) {
                    0 => (0, BLOCK as usize),
                    1 => (rng.usize(..512), 1),
                    _ => (rng.usize(..512), rng.usize(1..512)),
                };
                let len = len.min(512 - from);
                let run = FrameRange::new(start.add(from as u64), len as u64);
                let part = &mut model[from..from + len];
                let grows = rng.bool() || rng.u32(..8) == 0 && most > 100;
                let times = if most > 100 && len == 512 { rng.u32(1..60) } else { 1 };
                if grows && part.iter().all(|&count| count + times <= most) {
                    (0..times).for_each(|_| map(allocator, run));
                    part.iter_mut().for_each(|count| *count += times);
                } else if part.iter().enumerate().all(|(at, &count)| count > kept(from + at)) {
                    unmap(allocator, run);
                    part.iter_mut().for_each(|count| *count -= 1);
                }
                if step % 20 == 0 {
                    agree(allocator, start, &model, large);
                    let any = model.iter().any(|&count| count > 0);
                    assert_eq!(count_frames(allocator) > 0, any, "seed {seed}, step {step}");
                }
            }
            agree(allocator, start, &model, large);
            let (split, mut freed) = (seed % 2 == 0 && !large, 0);
            if split {
                // Split to small pieces it counts in its columns, but for counts beyond a byte.
                freed += allocator.split_raw(start, order(0)).unwrap();
                agree(allocator, start, &model, false);
                assert!(count_frames(allocator) == 0 || most > 100);
            }
            for (at, count) in model.into_iter().enumerate() {
                (0..count).for_each(|_| freed += unmap(allocator, FrameRange::new(start.add(at as u64), 1)));
            }
            assert_eq!(count_frames(allocator), 0);
            if large {
                freed +=
                    allocator.counts().counter().unmap_large_raw(start, PageSize::Size2M, Contents::Unknown);
            }
            allocator.lists().drain_local();
            assert_eq!(allocator.memory_info().used, 0, "seed {seed}");
            assert!(freed == BLOCK || split, "seed {seed}: all of it at once");
        });
    }
}

/// The same inside a page of a pool, where counts stand in the record until a frame is counted twice.
#[test]
fn counts_in_the_record_agree_with_a_number_for_each_frame() {
    let config =
        HostedConfig { clearing: false, tlb_model: false, ..HostedConfig::new((2 << 30) + 64 * MIB) };
    with_allocator(config, |machine, allocator| {
        let first = pool_page(allocator);
        let mut slots = [0; 2];
        for seed in seed(0)..seed(0) + 40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let start = first.add((1 + seed % 511) * BLOCK);
            let mut model = [0u32; BLOCK as usize];
            let most = [1, 2, 4, 300][seed as usize % 4];
            for step in 0..400 {
                let (from, len) = match rng.u32(..5) {
                    0 => (0, 512),
                    1 | 2 => (rng.usize(..512), 1),
                    _ => (rng.usize(..512), rng.usize(1..512)),
                };
                let len = len.min(512 - from);
                let run = FrameRange::new(start.add(from as u64), len as u64);
                let part = &mut model[from..from + len];
                let times = if most > 100 && len == 512 { rng.u32(1..60) } else { 1 };
                if rng.u32(..5) < 3 && part.iter().all(|&count| count + times <= most) {
                    (0..times).for_each(|_| map(allocator, run));
                    part.iter_mut().for_each(|count| *count += times);
                } else if part.iter().all(|&count| count > 0) {
                    // All it needs was promised.
                    machine.set_failures(hosted::FailurePlan::From(0));
                    assert_eq!(unmap(allocator, run), 0, "the pool has it");
                    machine.set_failures(hosted::FailurePlan::Off);
                    part.iter_mut().for_each(|count| *count -= 1);
                }
                if step % 16 == 0 {
                    for (at, &expected) in model.iter().enumerate() {
                        let count = allocator.counts().mapcount(start.add(at as u64));
                        assert_eq!(count, expected.into(), "seed {seed}, step {step}, frame {at}");
                    }
                }
                assert!(most > 1 || count_frames(allocator) == 0, "none was counted twice");
                slots[usize::from(count_frames(allocator) > 0)] += 1;
            }
            for (at, count) in model.into_iter().enumerate() {
                (0..count)
                    .for_each(|_| assert_eq!(unmap(allocator, FrameRange::new(start.add(at as u64), 1)), 0));
            }
            assert_eq!(count_frames(allocator), 0, "seed {seed}");
        }
        assert!(slots.iter().all(|&times| times > 1000), "{slots:?}");
        assert_eq!(allocator.release_raw(FrameRange::folio(first, Order::FRAME)), Order::GIGANTIC.frames());
    });
}

/// Whole tables need no slot, however many there are, except the promise of one: two of them may later be
/// mapped in parts when there is no memory.
#[test]
fn tables_of_a_pool_page_are_promised_the_slots_that_their_parts_need() {
    let config =
        HostedConfig { clearing: false, tlb_model: false, ..HostedConfig::new((2 << 30) + 64 * MIB) };
    with_allocator(config, |machine, allocator| {
        let first = pool_page(allocator);
        let page = FrameRange::folio(first, Order::GIGANTIC);
        // The first block has its descriptor where the others have bits.
        let behind = FrameRange::new(first.add(BLOCK), page.count - BLOCK);
        // Eight slots in a frame, and up to an eighth more than is needed.
        let promised = (behind.count / BLOCK).div_ceil(8);
        let promised = promised..=promised + promised / 8;
        for spaces in 1..=8 {
            map(allocator, behind);
            let frames = count_frames(allocator);
            assert!(if spaces > 1 { promised.contains(&frames) } else { frames == 0 }, "{spaces}: {frames}");
        }
        machine.set_failures(hosted::FailurePlan::From(0));
        // A part of one, of a second, of a third: bits, then lanes.
        for (from, len) in [(100, 50), (120, 200), (0, 511)] {
            for table in behind.by_block() {
                assert_eq!(unmap(allocator, FrameRange::new(table.start.add(from), len)), 0);
            }
        }
        let count = |at: u64| allocator.counts().mapcount(first.add(BLOCK * 300 + at));
        assert_eq!(
            [0, 99, 100, 119, 120, 149, 150, 319, 320, 511].map(count),
            [7, 7, 6, 6, 5, 5, 6, 6, 7, 8]
        );
        assert!(promised.contains(&count_frames(allocator)), "they took the promised frames");
        machine.set_failures(hosted::FailurePlan::Off);
        for (from, len) in [(100, 50), (120, 200), (0, 511)] {
            for table in behind.by_block() {
                map(allocator, FrameRange::new(table.start.add(from), len));
            }
        }
        for _ in 0..8 {
            unmap(allocator, behind);
        }
        assert_eq!(count_frames(allocator), 0);
        assert_eq!(allocator.release_raw(FrameRange::folio(first, Order::FRAME)), page.count);
    });
}

#[test]
fn a_slot_that_was_prepared_in_vain_goes_back() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, allocator| {
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.counts().prepare_counts(start).unwrap();
        allocator.counts().prepare_counts(start).unwrap();
        assert_eq!(count_frames(allocator), 1);
        allocator.counts().forget_counts(start);
        assert_eq!(count_frames(allocator), 0);
        // Freeing the folio also frees a slot that was prepared and never used.
        allocator.counts().prepare_counts(start).unwrap();
        allocator.counts().counter().map_large(start, PageSize::Size2M);
        assert_eq!(
            allocator.counts().counter().unmap_large_raw(start, PageSize::Size2M, Contents::Unknown),
            BLOCK
        );
        assert_eq!(count_frames(allocator), 0);
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.counts().prepare_counts(start).unwrap();
        allocator.free_raw(start, Order::BLOCK).unwrap();
        allocator.lists().drain_local();
        assert_eq!(count_frames(allocator), 0);
        // Without memory nothing changes.
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        machine.set_failures(hosted::FailurePlan::From(0));
        assert!(allocator.counts().prepare_counts(start).is_err());
        machine.set_failures(hosted::FailurePlan::Off);
        assert!(matches!(
            allocator.counts().counter().map(FrameRange::new(start, 1)),
            Err(CountError::Prepare { .. })
        ));
        allocator.free_raw(start, Order::BLOCK).unwrap();
    });
}

/// A full byte anywhere in a run, above all in its first and last words, which are counted in part: in small
/// blocks and in folios of whole blocks.
#[test]
fn a_lane_that_is_full_anywhere_in_a_run_grows() {
    const RUNS: [(u64, u64); 9] =
        [(0, 1), (5, 1), (3, 10), (8, 8), (7, 2), (1, 7), (2, 13), (17, 40), (240, 16)];
    for (folio, (first, count)) in
        [order(8), order(9)].into_iter().flat_map(|folio| RUNS.map(|run| (folio, run)))
    {
        for full in [first, first + count / 2, first + count - 1] {
            for most in 254..=256 {
                with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
                    let start = allocator.alloc_raw(Gfp::USER, folio).unwrap();
                    let (run, one) =
                        (FrameRange::new(start.add(first), count), FrameRange::new(start.add(full), 1));
                    (1..most).for_each(|_| map(allocator, one));
                    map(allocator, run);
                    let mut model = vec![0; folio.frames() as usize];
                    model[first as usize..(first + count) as usize].fill(1);
                    model[full as usize] = most as u32;
                    agree(allocator, start, &model, false);
                    unmap(allocator, run);
                    model[first as usize..(first + count) as usize].fill(0);
                    model[full as usize] = most as u32 - 1;
                    agree(allocator, start, &model, false);
                    (1..most).for_each(|_| _ = unmap(allocator, one));
                });
            }
        }
    }
}

/// Tables that map all of a block, and leaves of one frame beside them, are added up to 254, 255 and 256,
/// however many of each there are and whichever were mapped first.
#[test]
fn tables_and_single_leaves_together_pass_a_byte_exactly() {
    let cases = [1_u64, 2, 3, 128, 253, 254].into_iter();
    for (tables, total) in cases.flat_map(|tables| (254..=257).map(move |total| (tables, total))) {
        for singles_first in [false, true] {
            with_allocator(HostedConfig::new(64 * MIB), |_, allocator| {
                let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
                let (whole, one) = (FrameRange::folio(start, Order::BLOCK), FrameRange::new(start.add(5), 1));
                let steps = [(whole, tables), (one, total - tables)];
                let at = usize::from(singles_first);
                for (run, times) in [steps[at], steps[1 - at]] {
                    (0..times).for_each(|_| map(allocator, run));
                }
                let mut model = [tables as u32; BLOCK as usize];
                model[5] = total as u32;
                agree(allocator, start, &model, false);
                // Each table unmaps a frame that only tables map, so that all are spelled out.
                for left in (0..tables).rev() {
                    assert_eq!(unmap(allocator, FrameRange::new(start.add(400), 1)), 0);
                    model[400] = left as u32;
                    agree(allocator, start, &model, false);
                }
                (0..total).for_each(|_| _ = unmap(allocator, one));
                model[5] = 0;
                agree(allocator, start, &model, false);
                for (from, count) in [(0, 5), (6, 394), (401, 111)] {
                    (0..tables).for_each(|_| _ = unmap(allocator, FrameRange::new(start.add(from), count)));
                }
                assert_eq!(count_frames(allocator), 0);
                allocator.lists().drain_local();
                assert_eq!(allocator.memory_info().used, 0, "{tables} tables of {total}");
            });
        }
    }
}

/// A block inside a page of a pool whose slot was freed counts in its record as before: the next whole table
/// needs neither a slot nor the promise of one.
#[test]
fn a_block_that_had_a_slot_counts_whole_tables_without_one_again() {
    let config = HostedConfig { clearing: false, ..HostedConfig::new((2 << 30) + 64 * MIB) };
    with_allocator(config, |_, allocator| {
        let first = pool_page(allocator);
        let block = FrameRange::new(first.add(3 * BLOCK), BLOCK);
        let part = FrameRange::new(block.start.add(7), 20);
        map(allocator, part);
        assert_eq!(count_frames(allocator), 0, "bits in the record");
        map(allocator, part);
        assert_eq!(count_frames(allocator), 1, "counted twice");
        unmap(allocator, part);
        unmap(allocator, part);
        assert_eq!(count_frames(allocator), 0);
        map(allocator, block);
        assert_eq!(count_frames(allocator), 0, "one table");
        unmap(allocator, block);
        assert_eq!(allocator.release_raw(FrameRange::folio(first, Order::FRAME)), Order::GIGANTIC.frames());
    });
}
