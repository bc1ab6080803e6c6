//! Ranges of blocks are emptied: of memory that was fragmented on purpose, and of memory that cannot be
//! emptied.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::error::AllocError;
use quire::hugetlb::{HugeSize, Stopped};
use quire::limits::CONTIG_TRIES;
use quire::memmap::BlockState::Whole;
use quire::page_alloc::{FrameRun, Gfp, NodeSet, Urgency, Verdict};
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Advice, Backing, FolioPolicy, ForkStrategy, MapRequest, OrderPolicy, Sharing};

use crate::hugetlb::world;
use crate::migrate::poison::with_bad;
use crate::migrate::support::{PAGE, frame_at};
use crate::migrate::world::{MIB, Manager, Space, anonymous, load, run, store, with_manager};
use testkit::order;

pub(super) const BASE: u64 = 0x1_0000_0000;
const GIB: u64 = 1 << 30;

/// Maps memory of which one in `kept` pages is present, one in each stretch of so many frames, so that
/// every block is in use. The frames between them are allocated meanwhile, and freed then.
pub(super) fn fragment(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, bytes: u64, kept: u64) {
    mm.mmap(&anonymous(BASE, bytes)).unwrap();
    // Page tables are allocated first, side by side: they cannot be moved.
    for table in 0..bytes / (2 * MIB) {
        load(machine, mm, BASE + table * 2 * MIB).unwrap();
    }
    let pages = manager.pages();
    let mut between = Vec::new();
    for page in (0..bytes / PAGE).step_by(kept as usize) {
        store(machine, mm, BASE + page * PAGE, page).unwrap();
        between.extend((1..kept).map(|_| pages.alloc_raw(Gfp::USER, Order::FRAME).unwrap()));
    }
    between.into_iter().for_each(|frame| pages.free_raw(frame, Order::FRAME).unwrap());
}

pub(super) fn check(machine: &Hosted, mm: &Space<'_>, bytes: u64, kept: u64) {
    for page in (0..bytes / PAGE).step_by(kept as usize) {
        assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page), "page {page}");
    }
}

/// Allocates one frame of movable memory in each stretch of so many blocks, and leaves it unmapped.
pub(super) fn keep_one_in_each(manager: &Manager<'_>, blocks: u32) -> Vec<Frame> {
    let (pages, mut all) = (manager.pages(), Vec::new());
    while let Ok(frame) = pages.alloc_raw(Gfp::USER, Order::FRAME) {
        all.push(frame);
    }
    let mut stretches = std::collections::HashSet::new();
    let (kept, rest): (Vec<Frame>, Vec<Frame>) =
        all.into_iter().partition(|frame| stretches.insert(frame.block().0 / blocks));
    rest.iter().for_each(|&frame| pages.free_raw(frame, Order::FRAME).unwrap());
    pages.lists().drain_all();
    kept
}

fn give_back(manager: &Manager<'_>, run: FrameRun) {
    manager.pages().free_contig(run).unwrap();
    manager.validate().unwrap();
}

#[test]
fn blocks_in_a_row_are_emptied_where_least_must_move() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            fragment(machine, manager, mm, 108 * MIB, 16);
            manager.pages().lists().drain_all();
            assert_eq!(manager.pages().alloc_contig_raw(Gfp::USER, 16, 1), Err(AllocError::OutOfMemory));
            // A stretch in the middle needs few pages to be moved.
            let (from, to) = (40 * MIB, 70 * MIB);
            mm.madvise(VirtAddr(BASE + from), to - from - 8 * PAGE, Advice::DontNeed).unwrap();
            let moved = manager.stat(Stat::PgmigrateSuccess);
            let run = manager.alloc_contig(Gfp::USER, 16, 1).expect("all is movable");
            assert!(manager.stat(Stat::PgmigrateSuccess) - moved < 16 * 32, "the cheapest first");
            let wide = manager.alloc_contig(Gfp::USER, 12, 16).expect("all is movable");
            assert!(wide.frames().start.block().0.is_multiple_of(16));
            assert_eq!(manager.stat(Stat::ContigAllocFail), 0);
            for page in (0..from).chain(to..108 * MIB).step_by(16 * PAGE as usize) {
                assert_eq!(load(machine, mm, BASE + page), Ok(page / PAGE));
                let at = frame_at(machine, mm, BASE + page);
                assert!(!run.frames().contains(at));
                assert!(!wide.frames().contains(at));
            }
            give_back(manager, run);
            give_back(manager, wide);
        });
    });
}

#[test]
fn large_folios_and_pages_of_files_get_out_of_the_way() {
    with_manager(HostedConfig::new(192 * MIB), |machine, manager| {
        let policy = FolioPolicy::FRAMES.with(Order::BLOCK, OrderPolicy::Always).with_pmd_mapped(true);
        manager.set_folio_policy(policy);
        machine.files().set_size(FileId(5), 8 * MIB);
        let file = manager.open(FileId(5)).unwrap();
        let memory = manager.shmem(8 * MIB).unwrap();
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 70 * MIB)).unwrap();
            let at = |place: u64| VirtAddr(BASE + place * 128 * MIB);
            for (place, backing) in [(1, &file), (2, &memory)] {
                let backing = Backing::File { file: backing, page_offset: 0 };
                let sharing = Sharing::Shared;
                mm.mmap(&MapRequest { addr: at(place), sharing, backing, ..anonymous(BASE, 8 * MIB) })
                    .unwrap();
            }
            let mut rng = fastrand::Rng::with_seed(7);
            let words: Vec<_> =
                (0..35u64).map(|block| BASE + block * 2 * MIB + rng.u64(..512) * PAGE).collect();
            for block in 0..35u64 {
                store(machine, mm, words[block as usize], block).unwrap();
                for page in block * 58..(block + 1) * 58 {
                    store(machine, mm, at(1).0 + page * PAGE, page).unwrap();
                    store(machine, mm, at(2).0 + page * PAGE, !page).unwrap();
                }
                // Every other block is freed, so that no eight in a row are free.
                if block % 2 == 1 {
                    mm.madvise(VirtAddr(BASE + block * 2 * MIB), 2 * MIB, Advice::DontNeed).unwrap();
                }
            }
            let run = manager.alloc_contig(Gfp::USER, 64, 1).expect("all is movable");
            assert!(manager.stat(Stat::ThpMigrationSuccess) > 0, "blocks moved as blocks");
            for block in (0..35usize).step_by(2) {
                assert_eq!(load(machine, mm, words[block]), Ok(block as u64));
            }
            for page in 0..35 * 58 {
                assert_eq!(load(machine, mm, at(1).0 + page * PAGE), Ok(page));
                assert_eq!(load(machine, mm, at(2).0 + page * PAGE), Ok(!page));
            }
            give_back(manager, run);
        });
    });
}

#[test]
fn what_cannot_be_moved_keeps_a_range_and_nothing_changes() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            let pages = manager.pages();
            let kept = keep_one_in_each(manager, 8);
            mm.mmap(&anonymous(BASE, 32 * MIB)).unwrap();
            (0..8192).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let frames: Vec<_> = (0..8192).map(|page| frame_at(machine, mm, BASE + page * PAGE)).collect();
            pages.lists().drain_all();
            let (info, whole) =
                (pages.memory_info(), pages.zone_info().map(|zone| zone.whole_blocks).sum::<u64>());
            let moved = manager.stat(Stat::PgmigrateSuccess);
            assert_eq!(manager.alloc_contig(Gfp::USER, 16, 1), Err(AllocError::OutOfMemory));
            assert_eq!(manager.stat(Stat::PgmigrateSuccess), moved);
            assert!(manager.stat(Stat::ContigAllocFail) > 0);
            pages.lists().drain_all();
            assert_eq!(pages.memory_info(), info);
            assert_eq!(pages.zone_info().map(|zone| zone.whole_blocks).sum::<u64>(), whole);
            for (page, &frame) in (0..8192).zip(&frames) {
                assert_eq!(frame_at(machine, mm, BASE + page * PAGE), frame);
            }
            manager.validate().unwrap();
            kept.iter().for_each(|&frame| pages.free_raw(frame, Order::FRAME).unwrap());
            let run = manager.alloc_contig(Gfp::USER, 16, 1).expect("now it can");
            give_back(manager, run);
        });
    });
}

#[test]
fn a_pool_of_gigantic_pages_grows_in_fragmented_memory() {
    with_manager(HostedConfig::new(3 * GIB), |machine, manager| {
        run(manager, |mm| {
            let (bytes, kept) = (2 * GIB + 900 * MIB, 64);
            fragment(machine, manager, mm, bytes, kept);
            let pools = manager.huge_pools();
            let plain = pools.resize(manager.pages(), HugeSize::Size1G, NodeSet::ALL, 2);
            assert_eq!((plain.after, plain.stopped), (0, Some(Stopped::OutOfMemory)));
            let done = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 2);
            assert_eq!((done.before, done.after, done.wanted, done.stopped), (0, 2, 2, None));
            println!("{} frames moved", manager.stat(Stat::PgmigrateSuccess));
            pools.validate(manager.pages()).unwrap();
            manager.validate().unwrap();
            check(machine, mm, bytes, kept);
            let more = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 9);
            assert!(more.after < 9 && more.stopped == Some(Stopped::OutOfMemory), "{more:?}");
            check(machine, mm, bytes, kept);
            let none = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 0);
            assert_eq!((none.after, none.stopped), (0, None));
            let kept_frames = keep_one_in_each(manager, 512);
            let moved = manager.stat(Stat::PgmigrateSuccess);
            let refused = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 1);
            assert_eq!((refused.after, refused.stopped), (0, Some(Stopped::OutOfMemory)));
            assert_eq!(manager.stat(Stat::PgmigrateSuccess), moved, "nothing was moved in vain");
            check(machine, mm, bytes, kept);
            kept_frames.iter().for_each(|&frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        });
    });
}

/// Of all ranges of 1 GiB only the one with most to move can be emptied, and its zone has more of the others
/// than one request for blocks in a row tries.
#[test]
fn a_pool_of_gigantic_pages_tries_every_range() {
    const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
    with_manager(HostedConfig::new(11 * GIB), |machine, manager| {
        run(manager, |mm| {
            let (pages, touched) = (manager.pages(), 600);
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            // Page tables lie elsewhere: they cannot be moved.
            (0..2).for_each(|table| _ = load(machine, mm, BASE + table * 2 * MIB).unwrap());
            let all = |order| std::iter::from_fn(move || pages.alloc_raw(ALL, order).ok());
            let mut gigantic: Vec<Frame> = all(Order::GIGANTIC).collect();
            gigantic.sort();
            let (blocks, frames): (Vec<_>, Vec<_>) =
                (all(Order::BLOCK).collect(), all(Order::FRAME).collect());
            let (&last, others) = gigantic.split_last().unwrap();
            let in_its_zone = others.iter().filter(|frame| frame.0 * PAGE >= 4 * GIB).count();
            assert!(in_its_zone > CONTIG_TRIES, "{in_its_zone} ranges");
            let blocks_of = |range: Frame| {
                pages.split_raw(range, Order::BLOCK).unwrap();
                (0..512).map(move |at| range.add(at * 512))
            };
            let free = |frame, order| pages.free_raw(frame, order).unwrap();
            let mut of_last = blocks_of(last);
            of_last.by_ref().take(64).for_each(|block| free(block, Order::BLOCK));
            (0..touched).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            of_last.for_each(|block| free(block, Order::BLOCK));
            for &range in others {
                blocks_of(range).skip(1).for_each(|block| free(block, Order::BLOCK));
                pages.split_raw(range, Order::FRAME).unwrap();
                (1..512).for_each(|at| free(range.add(at), Order::FRAME));
            }
            blocks.into_iter().for_each(|block| free(block, Order::BLOCK));
            frames.into_iter().for_each(|frame| free(frame, Order::FRAME));
            pages.lists().drain_all();
            let done = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 1);
            assert_eq!((done.after, done.stopped), (1, None));
            assert_eq!(manager.stat(Stat::PgmigrateSuccess), touched);
            // There is no other.
            let more = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 2);
            assert_eq!((more.after, more.stopped), (1, Some(Stopped::OutOfMemory)));
            check(machine, mm, touched * PAGE, 1);
            assert_eq!(manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 0).after, 0);
            others.iter().for_each(|&frame| free(frame, Order::FRAME));
        });
    });
}

#[test]
fn orders_above_nine_are_served_by_moving() {
    with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
        run(manager, |mm| {
            fragment(machine, manager, mm, 108 * MIB, 32);
            let move_out = |_: FrameRange| {};
            let pages = manager.pages();
            assert_eq!(pages.alloc_moving(Gfp::USER, order(13), move_out), Err(AllocError::OutOfMemory));
            assert_eq!(pages.alloc_moving(Gfp::USER, order(8), move_out), Err(AllocError::BadOrder));
            manager.validate().unwrap();
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 20).after, 20);
            check(machine, mm, 108 * MIB, 32);
            let _ = manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0);
        });
    });
}

/// Otherwise the time to grow a pool by moving grows with the square of the memory.
#[test]
fn blocks_looked_at_for_a_page_do_not_grow_with_the_memory() {
    for bytes in [512 * MIB, GIB] {
        with_manager(HostedConfig::new(bytes), |machine, manager| {
            run(manager, |mm| {
                let (mapped, pages) = (bytes / 8 * 7, bytes / (4 * MIB));
                fragment(machine, manager, mm, mapped, 64);
                assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, pages).after, pages);
                check(machine, mm, mapped, 64);
                let emptied = manager.stat(Stat::ContigAllocSuccess);
                assert!(emptied > pages / 2, "{emptied} of {pages} pages were moved for");
                let each = manager.stat(Stat::ContigScanned) / emptied;
                println!("{each} blocks for each of {emptied} pages");
                assert!(each < 32, "{each} blocks for each page of {bytes} bytes");
                assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
            });
        });
    }
}

/// Blocks in which a page table stands are the cheapest by their records, and were tried for each page.
#[test]
fn blocks_with_one_frame_that_cannot_move_do_not_end_the_growth_of_a_pool() {
    with_manager(HostedConfig::new(256 * MIB), |machine, manager| {
        run(manager, |mm| {
            let (pages, bytes) = (manager.pages(), 128 * MIB);
            fragment(machine, manager, mm, bytes, 64);
            pages.lists().drain_all();
            let whole: Vec<Frame> =
                std::iter::from_fn(|| pages.alloc_raw(Gfp::USER, Order::BLOCK).ok()).collect();
            assert!(whole.len() > 40, "{} blocks", whole.len());
            for &block in &whole {
                pages.split_raw(block, Order::FRAME).unwrap();
                (1..512).for_each(|at| pages.free_raw(block.add(at), Order::FRAME).unwrap());
            }
            pages.lists().drain_all();
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 30).after, 30);
            assert_eq!(manager.stat(Stat::ContigAllocFail), 0);
            check(machine, mm, bytes, 64);
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
            whole.iter().for_each(|&frame| pages.free_raw(frame, Order::FRAME).unwrap());
        });
    });
}

/// A page of a pool is replaced by another one, so its block is no gain. Once no other block was left, four
/// such pages were tried eight times each, and some moved to a lower zone.
#[test]
fn a_pool_does_not_move_its_own_pages_to_grow() {
    with_manager(HostedConfig::new(256 * MIB), |_, manager| {
        let (pages, size) = (manager.pages(), HugeSize::Size2M);
        let blocks = std::iter::from_fn(|| pages.alloc_raw(Gfp::USER, Order::BLOCK).ok());
        let pinned: Vec<Frame> = blocks.take(40).collect();
        for &block in &pinned {
            pages.split_raw(block, Order::FRAME).unwrap();
            (1..512).for_each(|at| pages.free_raw(block.add(at), Order::FRAME).unwrap());
        }
        pages.lists().drain_all();
        let grown = manager.resize_huge(size, NodeSet::ALL, 1000);
        assert!(grown.after > 40 && grown.stopped == Some(Stopped::OutOfMemory), "{grown:?}");
        assert_eq!(manager.stat(Stat::ContigAllocFail), 0);
        assert_eq!(manager.resize_huge(size, NodeSet::ALL, 0).after, 0);
        pinned.iter().for_each(|&frame| pages.free_raw(frame, Order::FRAME).unwrap());
        manager.validate().unwrap();
    });
}

/// The pages of a block leave it together, with one flush of an address space that maps them, instead of one
/// for each page.
#[test]
fn a_block_is_emptied_with_one_flush() {
    with_manager(HostedConfig::new(512 * MIB), |machine, manager| {
        run(manager, |mm| {
            fragment(machine, manager, mm, 448 * MIB, 64);
            let (flushes, moved) = (machine.counters().flushes_local, manager.stat(Stat::PgmigrateSuccess));
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 128).after, 128);
            let blocks = manager.stat(Stat::ContigAllocSuccess);
            let pages = manager.stat(Stat::PgmigrateSuccess) - moved;
            let flushes = machine.counters().flushes_local - flushes;
            println!("{flushes} flushes for {pages} pages of {blocks} blocks");
            assert!(blocks > 64 && pages > 7 * blocks, "{pages} pages of {blocks} blocks moved");
            assert!(flushes <= blocks + pages / 32, "{flushes} flushes for {pages} pages of {blocks} blocks");
            check(machine, mm, 448 * MIB, 64);
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
        });
    });
}

/// A window of descriptors is flushed twice for each batch of pages, and not for each page.
#[test]
fn pages_that_were_moved_for_join_a_pool_in_batches() {
    let machine = HostedConfig::new(512 * MIB);
    world::with_config(machine, HugeSize::Size2M, 0, |machine, manager| {
        run(manager, |mm| {
            fragment(machine, manager, mm, 400 * MIB, 64);
            let flushes = || machine.counters().flushes_kernel;
            let before = flushes();
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 150).after, 150);
            let moved_for = manager.stat(Stat::ContigAllocSuccess);
            assert!(moved_for > 50, "{moved_for} pages were moved for");
            assert!(flushes() - before <= 6, "{} flushes for {moved_for} pages", flushes() - before);
            check(machine, mm, 400 * MIB, 64);
            assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
        });
    });
}

/// The number of a block has fewer bits than that of a frame.
#[test]
fn frames_that_are_no_memory_are_not_moved() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            (0..1024).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let block = frame_at(machine, mm, BASE + 512 * PAGE).block().first_frame();
            assert_eq!(manager.move_out(FrameRange::new(block.add(1 << 41), 512)), 0);
            assert_eq!(frame_at(machine, mm, BASE + 512 * PAGE).block().first_frame(), block);
            assert!(manager.move_out(FrameRange::new(block, 512)) > 0);
        });
    });
}

/// A frame of a range that is being emptied goes bad, in a block that was free from the start: it is lost, and the
/// range is not handed out.
#[test]
fn a_free_frame_of_a_range_that_is_emptied_goes_bad() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        run(manager, |mm| {
            // Every other block is free.
            fragment(machine, manager, mm, 48 * MIB, 1024);
            let (pages, mut bad) = (manager.pages(), None);
            pages.lists().drain_all();
            let found = pages.alloc_contig_moving(Gfp::USER, 16, 16, |range| {
                if bad.is_none() {
                    let is_free = |block: &Frame| pages.memmap().block(block.block()).state() == Whole;
                    let free =
                        (0..16).map(|at| range.start.add(at * 512)).find(is_free).expect("every other");
                    bad = Some(free.add(77));
                    assert_eq!(pages.condemn(free.add(77)), Verdict::Lost);
                }
                manager.move_out(range);
            });
            let bad = bad.expect("a range was tried");
            let run = found.map(|run| run.into_raw()).unwrap_or(FrameRange::new(bad, 0));
            assert!(!run.contains(bad), "{run:?} has {bad:?}");
            assert!(pages.frames().is_bad(bad));
            check(machine, mm, 48 * MIB, 1024);
            pages.free_range_raw(run).unwrap();
        });
    });
}

/// A search that looks at every block of a zone invokes reschedule points on its way.
#[test]
fn a_search_of_all_blocks_has_reschedule_points() {
    with_manager(HostedConfig::new(3 * GIB), |machine, manager| {
        let (pages, gfp) = (manager.pages(), Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL });
        let all = |order| -> Vec<Frame> { std::iter::from_fn(|| pages.alloc_raw(gfp, order).ok()).collect() };
        let free = |frame, order| pages.free_raw(frame, order).unwrap();
        let mut blocks = all(Order::BLOCK);
        // There are as many free frames as are wanted, but no block.
        blocks.split_off(blocks.len() - 4).into_iter().for_each(|block| free(block, Order::BLOCK));
        let (kept, others): (Vec<_>, Vec<_>) =
            all(Order::FRAME).into_iter().partition(|frame| frame.0.is_multiple_of(512));
        others.into_iter().for_each(|frame| free(frame, Order::FRAME));
        for shape in [1, 2] {
            let before = (machine.counters().reschedule_points, manager.stat(Stat::ContigScanned));
            let found = pages.alloc_contig_moving(gfp, shape, 1, |_| ());
            assert_eq!(found.map(|run| run.into_raw()), Err(AllocError::OutOfMemory));
            let points = machine.counters().reschedule_points - before.0;
            let looked_at = manager.stat(Stat::ContigScanned) - before.1;
            assert!(looked_at > 1000, "{looked_at}");
            assert!(points >= looked_at / 512, "{points} for {looked_at} blocks");
        }
        blocks.into_iter().for_each(|block| free(block, Order::BLOCK));
        kept.into_iter().for_each(|frame| free(frame, Order::FRAME));
    });
}
