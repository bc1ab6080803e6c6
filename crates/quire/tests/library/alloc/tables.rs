//! What the library stores about frames: how much memory that takes, and how it comes and goes.

use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::manager::Config;
use quire::page_alloc::{FrameInfo, Gfp, PageAllocator, Urgency};
use quire::vm::{Advice, FolioPolicy, MapRequest, Placement};
use testkit::{order, ranges_of, with_allocator};

const MIB: u64 = 1 << 20;
const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

type Allocator<'m> = PageAllocator<'m, Hosted>;

fn whole_blocks(allocator: &Allocator<'_>) -> u64 {
    allocator.zone_info().map(|zone| zone.whole_blocks).sum()
}

/// Frees per-CPU lists and spare blocks, so that all of memory that can be whole is.
fn settle(allocator: &Allocator<'_>) {
    (0..2).for_each(|_| allocator.lists().drain_all());
}

/// Of a memory full of folios of one size, whichever, at least 98 % of the frames are in such folios.
#[test]
fn memory_is_full_of_folios_of_any_size() {
    for number in 0..=9 {
        with_allocator(HostedConfig::new(512 * MIB), |_, allocator| {
            let folios: Vec<_> =
                std::iter::from_fn(|| allocator.alloc_raw(ALL, order(number)).ok()).collect();
            let (had, total) = (folios.len() as u64 * order(number).frames(), allocator.total_frames());
            assert!(had * 100 >= total * 98, "order {number}: {had} frames of {total}");
            folios.iter().for_each(|&folio| allocator.free_raw(folio, order(number)).unwrap());
            allocator.validate().unwrap();
        });
    }
}

/// What is stored about anonymous memory is less than 0.5 % of it in folios of 4 KiB, and less than 0.3 % in
/// larger ones.
#[test]
fn descriptions_of_anonymous_memory_are_small() {
    const BASE: u64 = 1 << 32;
    let size = 512 * MIB;
    for number in [0, 2, 4, 6, 8] {
        let machine = HostedConfig::new(640 * MIB).build().unwrap();
        machine.run_on(CpuId(0), || {
            let manager =
                hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
            manager.set_folio_policy(FolioPolicy::only(order(number)));
            let mm = manager.new_mm().unwrap();
            let request = MapRequest {
                addr: VirtAddr(BASE),
                len: size,
                placement: Placement::Fixed,
                ..MapRequest::default()
            };
            let prot = quire::arch::Protection::READ | quire::arch::Protection::WRITE;
            mm.mmap(&MapRequest { prot, ..request }).unwrap();
            let empty = manager.pages().memory_info().metadata;
            mm.madvise(VirtAddr(BASE), size, Advice::PopulateWrite).unwrap();
            assert_eq!(mm.rss().anon, size / 4096);
            // Records and columns of the blocks, and what came with the memory.
            let (stored, frames) = (manager.pages().memory_info().metadata - empty, size / 4096);
            let stored = stored * 4096 + size / (2 * MIB) * (256 + 1600);
            let share = stored * 100_000 / (frames * 4096);
            assert!(share < if number == 0 { 500 } else { 300 }, "order {number}: 0.{share:03} %");
            mm.exit();
            manager.validate().unwrap();
        });
    }
}

/// A table comes when the first frame of its group needs it, stands in the block, and goes with the last
/// frame of the block. Without memory for it nothing has changed.
#[test]
fn descriptors_come_on_demand_and_go_with_their_block() {
    with_allocator(HostedConfig::new(32 * MIB), |machine, allocator| {
        settle(allocator);
        let (before, whole) = (allocator.memory_info(), whole_blocks(allocator));
        let folio = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.split_raw(folio, order(8)).unwrap();
        allocator.free_raw(folio.add(256), order(8)).unwrap();
        let metadata = || allocator.memory_info().metadata - before.metadata;
        let used = || allocator.memory_info().used - before.used;
        assert_eq!((metadata(), used()), (0, 256));
        machine.set_failures(FailurePlan::From(0));
        assert!(matches!(allocator.describe(folio), Err(AllocError::OutOfMemory)));
        machine.set_failures(FailurePlan::Off);
        allocator.validate().unwrap();
        assert_eq!((metadata(), used()), (0, 256));
        for at in [0, 63, 1] {
            allocator.describe(folio.add(at)).unwrap();
            assert_eq!(metadata(), 1, "one for 64 frames");
        }
        allocator.describe(folio.add(64)).unwrap();
        assert_eq!((metadata(), used()), (2, 256));
        let first = folio.block().first_frame();
        let tables =
            (0..512).filter(|&at| allocator.frames().frame_info(first.add(at)) == FrameInfo::Metadata);
        assert_eq!(tables.count(), 2, "they stand in the block");
        allocator.validate().unwrap();
        allocator.free_raw(folio, order(8)).unwrap();
        settle(allocator);
        assert_eq!((allocator.memory_info(), whole_blocks(allocator)), (before, whole));
    });
}

/// A full block's tables stand in other blocks. Where each of two blocks has a table of the other, both
/// become whole all the same.
#[test]
fn tables_in_each_others_blocks_keep_none_of_them() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        settle(allocator);
        let (before, whole) = (allocator.memory_info(), whole_blocks(allocator));
        let mut frames: Vec<Frame> =
            std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()).collect();
        frames.sort_unstable();
        // Two blocks that are full of frames in use.
        let is_full = |block: &&[Frame]| block.len() == 512;
        let blocks: Vec<Vec<Frame>> = frames
            .chunk_by(|one, other| one.block() == other.block())
            .filter(is_full)
            .take(2)
            .map(<[Frame]>::to_vec)
            .collect();
        let [one, other] = blocks.as_slice() else { panic!("two blocks") };
        // The only free frames of all memory, enough for a request, are in the other block.
        for (owner, host) in [(one, other), (other, one)] {
            let some = &host[100..400];
            let given: Vec<_> = some.iter().copied().filter(|frame| frames.contains(frame)).collect();
            given.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
            allocator.lists().drain_all();
            allocator.describe(owner[0]).unwrap();
            frames.retain(|frame| !given.contains(frame));
            frames.extend(std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()));
            let is_table = |frame: &&Frame| allocator.frames().frame_info(**frame) == FrameInfo::Metadata;
            assert_eq!(some.iter().filter(is_table).count(), 1, "it holds the table");
        }
        allocator.validate().unwrap();
        frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
        settle(allocator);
        allocator.validate().unwrap();
        assert_eq!((allocator.memory_info(), whole_blocks(allocator)), (before, whole));
    });
}

/// Neither to split a folio in use nor to free its parts.
#[test]
fn a_split_needs_no_memory() {
    with_allocator(HostedConfig::new(32 * MIB), |machine, allocator| {
        let folio = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        let before = allocator.memory_info();
        machine.set_failures(FailurePlan::From(0));
        assert_eq!(allocator.split_raw(folio, Order::FRAME), Ok(0));
        machine.set_failures(FailurePlan::Off);
        assert_eq!(allocator.memory_info(), before);
        (0..512).for_each(|at| allocator.free_raw(folio.add(at), Order::FRAME).unwrap());
        settle(allocator);
    });
}

/// An entirely free block stays in pieces, as its shard's spare. Tables in both of its halves leave no room
/// for a folio of 1 MiB: the search for one once found that block again and again.
#[test]
fn a_free_block_with_tables_in_both_halves_serves_smaller_folios() {
    with_allocator(HostedConfig::new(32 * MIB), |_, allocator| {
        settle(allocator);
        let block = allocator.alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
        allocator.split_raw(block, order(7)).unwrap();
        let quarters = [0, 128, 256, 384].map(|at| block.add(at));
        allocator.free_raw(quarters[0], order(7)).unwrap();
        allocator.describe(quarters[1]).unwrap();
        let rest = allocator.alloc_at(FrameRange::new(quarters[0].add(1), 127)).unwrap();
        allocator.free_raw(quarters[3], order(7)).unwrap();
        allocator.describe(quarters[1].add(64)).unwrap();
        for half in [0, 256] {
            let first = quarters[0].block().first_frame().add(half);
            let table = |at: &u64| allocator.frames().frame_info(first.add(*at)) == FrameInfo::Metadata;
            assert_eq!((0..256).filter(table).count(), 1);
        }
        allocator.free_range(rest).unwrap();
        [1, 2].iter().for_each(|&quarter| allocator.free_raw(quarters[quarter], order(7)).unwrap());
        let folio = allocator.alloc_raw(Gfp::USER, order(8)).unwrap();
        allocator.free_raw(folio, order(8)).unwrap();
        settle(allocator);
        allocator.validate().unwrap();
    });
}
