//! A pool grows until nothing more can be won: no page is refused that could be had, and little is tried in
//! vain.

use std::collections::BTreeSet;

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, MemoryRange};
use quire::addr::{BlockNumber, Frame, FrameRange, Order, VirtAddr};
use quire::hugetlb::{HugeSize, Stopped};
use quire::page_alloc::{FrameInfo, Gfp, NodeSet};
use quire::stats::Stat;
use quire::vm::Advice;

use crate::migrate::support::{PAGE, frame_at};
use crate::migrate::world::{MIB, Manager, Space, anonymous, load, run, store, with_manager};

const BASE: u64 = 0x1_0000_0000;
const SIZE: HugeSize = HugeSize::Size2M;
/// Pages in use of each block.
const USED: usize = 8;

/// All frames that are free, one by one.
fn take_all(manager: &Manager<'_>) -> Vec<Frame> {
    let pages = manager.pages();
    let frames = std::iter::from_fn(|| pages.alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
    pages.lists().drain_all();
    frames
}

fn free(manager: &Manager<'_>, frames: impl IntoIterator<Item = Frame>) {
    frames.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
    manager.pages().lists().drain_all();
}

/// Puts [`USED`] movable pages into each block of `frames`, which are all that are free, save one block for tables.
/// Returns how many there are.
fn spread(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, mut frames: Vec<Frame>) -> u64 {
    frames.sort();
    let for_tables = frames[0].block();
    let (mut last, mut seen) = (for_tables, 0);
    let (early, late): (Vec<Frame>, Vec<Frame>) = frames.into_iter().partition(|frame| {
        (last, seen) = (frame.block(), if frame.block() == last { seen + 1 } else { 1 });
        seen <= USED || last == for_tables
    });
    let count = early.iter().filter(|frame| frame.block() != for_tables).count() as u64;
    free(manager, early);
    mm.mmap(&anonymous(BASE, count * PAGE)).unwrap();
    (0..count).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
    free(manager, late);
    count
}

fn check(machine: &Hosted, mm: &Space<'_>, pages: u64) {
    (0..pages).for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page), "page {page}"));
}

/// Four such blocks, the cheapest by their records, ended the growth.
#[test]
fn a_pool_grows_past_blocks_whose_pages_are_held() {
    with_manager(HostedConfig::new(192 * MIB), |machine, manager| {
        run(manager, |mm| {
            let pages = manager.pages();
            let mut blocks = BTreeSet::new();
            let (held, rest): (Vec<Frame>, Vec<Frame>) = take_all(manager)
                .into_iter()
                .partition(|frame| blocks.len() < 20 && blocks.insert(frame.block()));
            held.iter().for_each(|&frame| pages.frames().hold(FrameRange::new(frame, 1)));
            let rest_of_held: Vec<Frame> =
                rest.iter().copied().filter(|frame| blocks.contains(&frame.block())).collect();
            let rest = rest.into_iter().filter(|frame| !blocks.contains(&frame.block())).collect();
            let count = spread(machine, manager, mm, rest);
            free(manager, rest_of_held);
            let wanted = count / USED as u64 - 2;
            let grown = manager.resize_huge(SIZE, NodeSet::ALL, wanted);
            assert_eq!((grown.after, grown.stopped), (wanted, None));
            assert!(manager.stat(Stat::ContigAllocFail) <= 20, "each is tried once");
            check(machine, mm, count);
            assert_eq!(manager.resize_huge(SIZE, NodeSet::ALL, 0).after, 0);
            held.iter().for_each(|&frame| assert_eq!(pages.release_raw(FrameRange::new(frame, 1)), 1));
        });
    });
}

/// The upper zone's folios of 2 MiB that no leaf maps were tried for each page that the lower one gave.
#[test]
fn a_zone_that_has_nothing_more_to_give_is_not_searched_for_each_page() {
    let ranges = vec![MemoryRange::new(0, 256 * MIB), MemoryRange::new(4 << 30, 256 * MIB)];
    with_manager(HostedConfig::new(512 * MIB).with_ranges(ranges), |machine, manager| {
        run(manager, |mm| {
            let pages = manager.pages();
            let unmapped: Vec<Frame> =
                (0..40).map(|_| pages.alloc_raw(Gfp::USER, Order::BLOCK).unwrap()).collect();
            assert!(unmapped.iter().all(|frame| frame.0 * PAGE >= 4 << 30));
            // Twenty blocks of the upper zone have much room, and can never be emptied.
            let mut blocks = BTreeSet::new();
            let (kept, frames): (Vec<Frame>, Vec<Frame>) = take_all(manager).into_iter().partition(|frame| {
                frame.0 * PAGE >= 4 << 30 && blocks.len() < 20 && blocks.insert(frame.block())
            });
            let count = spread(machine, manager, mm, frames);
            let (moved, scanned) = (manager.stat(Stat::PgmigrateSuccess), manager.stat(Stat::ContigScanned));
            let wanted = count / USED as u64 - 28;
            let grown = manager.resize_huge(SIZE, NodeSet::ALL, wanted);
            assert_eq!((grown.after, grown.stopped), (wanted, None));
            let emptied = manager.stat(Stat::ContigAllocSuccess);
            let (moved, scanned) =
                (manager.stat(Stat::PgmigrateSuccess) - moved, manager.stat(Stat::ContigScanned) - scanned);
            println!("{emptied} emptied of {wanted}, {moved} moved, {scanned} looked at");
            assert_eq!(manager.stat(Stat::ContigAllocFail), 0);
            assert!(emptied > 130, "{emptied} of {wanted}");
            assert!(moved <= emptied * USED as u64 + 16, "no full block is emptied: {moved} for {emptied}");
            assert!(scanned < 16 * emptied, "{scanned} for {emptied}");
            check(machine, mm, count);
            assert_eq!(manager.resize_huge(SIZE, NodeSet::ALL, 0).after, 0);
            unmapped.iter().for_each(|&frame| pages.free_raw(frame, Order::BLOCK).unwrap());
            free(manager, kept);
        });
    });
}

/// Whether nothing keeps a block from being emptied: each frame of it is free, of a movable folio, or one of the
/// block's own tables.
fn is_movable(manager: &Manager<'_>, number: BlockNumber) -> bool {
    let frames = manager.pages().frames();
    let at = |index: u64| number.first_frame().add(index);
    (0..512).all(|index| match frames.frame_info(at(index)) {
        FrameInfo::Free | FrameInfo::Metadata => true,
        FrameInfo::InUse { head, huge, .. } => {
            !huge && frames.next_movable(number, head.index_in_block()) == Some(head)
        }
        _ => false,
    })
}

/// Any mix of free, movable, held and unmovable frames: where a pool gets no more, no block can be emptied, or
/// what is left of the zone is below its mark.
#[test]
fn no_page_is_refused_that_could_be_had() {
    let bytes = 96 * MIB;
    let mut few = 0;
    let first = testkit::seed(0);
    for seed in first..first + 30 {
        with_manager(HostedConfig::new(bytes), |machine, manager| {
            run(manager, |mm| {
                let mut rng = fastrand::Rng::with_seed(seed);
                let pages = manager.pages();
                let some: BTreeSet<u32> = (0..48).filter(|_| rng.u8(..3) == 0).collect();
                let (kept, rest): (Vec<Frame>, Vec<Frame>) = take_all(manager)
                    .into_iter()
                    .partition(|frame| some.contains(&frame.block().0) && rng.u32(..200) == 0);
                free(manager, rest);
                mm.mmap(&anonymous(BASE, bytes)).unwrap();
                let stored = |page: &u64| store(machine, mm, BASE + page * PAGE, *page).is_ok();
                let touched: Vec<u64> = (0..bytes / PAGE).take_while(stored).collect();
                let share = rng.u8(..100);
                let (mut left, mut held) = (Vec::new(), Vec::new());
                for run in touched.chunks(1 + rng.usize(..64)) {
                    let dense = rng.u8(..200) < share;
                    for &page in run {
                        if !dense && rng.u8(..30) > 0 {
                            mm.madvise(VirtAddr(BASE + page * PAGE), PAGE, Advice::DontNeed).unwrap();
                            continue;
                        }
                        left.push(page);
                        if rng.u32(..1000) == 0 {
                            held.push(frame_at(machine, mm, BASE + page * PAGE));
                        }
                    }
                }
                held.iter().for_each(|&frame| pages.frames().hold(FrameRange::new(frame, 1)));
                let grown = manager.resize_huge(SIZE, NodeSet::ALL, 1000);
                assert_eq!(grown.stopped, Some(Stopped::OutOfMemory));
                pages.lists().drain_all();
                let movable = (0..48).filter(|&number| is_movable(manager, BlockNumber(number))).count();
                let zone = pages.zone_info().next().unwrap();
                let fit = zone.free.saturating_sub(zone.marks.min) / 512;
                let failed = manager.stat(Stat::ContigAllocFail);
                println!(
                    "QUIRE_SEED={seed}: {} pages; {movable} blocks are movable, and {fit} fit; {failed} failed, {} held",
                    grown.after,
                    held.len()
                );
                assert!(movable == 0 || fit == 0, "{seed}: {movable} blocks, and {fit} fit");
                assert!(
                    failed <= 4 * held.len() as u64,
                    "{seed}: {failed} failed, and {} are held",
                    held.len()
                );
                few += u32::from(movable == 0);
                left.iter().for_each(|&page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page)));
                assert_eq!(manager.resize_huge(SIZE, NodeSet::ALL, 0).after, 0);
                held.iter().for_each(|&frame| assert_eq!(pages.release_raw(FrameRange::new(frame, 1)), 0));
                free(manager, kept);
            });
        });
    }
    assert!((1..30).contains(&few), "{few} of 30 ended since no block could be emptied");
}
