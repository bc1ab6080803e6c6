//! The manager's own memory: tables, descriptors and lanes stand in frames of the machine that it manages
//! (invariants M1 to M4). Neither the former contents of those frames nor stores to their neighbours may
//! reach them.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::InitError;
use quire::hugetlb::{Charge, HugeGroup, HugePools, HugeSize};
use quire::limits::MAX_RANGES;
use quire::memmap::Descriptor;
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, Urgency};
use quire::platform::FramePlatform;
use testkit::{order, ranges_of, with_allocator};

const MIB: u64 = 1 << 20;
const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

/// Overwrites frames that the caller owns.
fn scribble(machine: &Hosted, frames: FrameRange) {
    // SAFETY: H1: the frames are memory of the machine, and the test's own: no other code uses them
    // meanwhile.
    unsafe { machine.direct_map(frames.start.addr()).write_bytes(0xff, (frames.count * 4096) as usize) };
}

/// Invariants M1 and 1: memory need not be zero when it is handed over, and no frame that is handed out holds
/// tables.
#[test]
fn tables_in_used_memory_are_fresh_and_never_handed_out() {
    let machine = HostedConfig::new(32 * MIB).with_cpus(2).build().unwrap();
    machine.run_on(CpuId(0), || {
        let ranges = ranges_of(&machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range });
        let ranges: Vec<_> = ranges.inspect(|range| scribble(&machine, range.frames)).collect();
        let allocator = hosted::raw::page_allocator(&machine, &ranges, AllocatorConfig::default()).unwrap();
        allocator.validate().unwrap();
        let before = allocator.memory_info();
        for size in [0, 3, 9] {
            let taken: Vec<_> = std::iter::from_fn(|| allocator.alloc_raw(ALL, order(size)).ok()).collect();
            assert!(taken.len() as u64 * order(size).frames() > before.free / 2, "most of it can be had");
            taken.iter().for_each(|&frame| scribble(&machine, FrameRange::folio(frame, order(size))));
            allocator.validate().unwrap();
            taken.iter().for_each(|&frame| allocator.free_raw(frame, order(size)).unwrap());
            allocator.lists().drain_local();
            assert_eq!(allocator.memory_info(), before);
        }
    });
}

/// Invariants M1 and 8: frames that hold tables of the manager count as metadata, and stores to all memory
/// that can be had do not reach them.
#[test]
fn tables_in_frames_are_never_handed_out() {
    with_allocator(HostedConfig::new(16 * MIB), |machine, allocator| {
        let before = allocator.memory_info();
        let pools = HugePools::new(allocator).unwrap();
        let after = allocator.memory_info();
        assert_eq!((after.metadata - before.metadata >= 3, after.used), (true, before.used));
        let group = pools.make_group(allocator, HugeGroup::NONE).unwrap();
        pools.charge(group, HugeSize::Size1G, Charge::Usage, 7).unwrap();
        let frames: Vec<_> = std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()).collect();
        frames.iter().for_each(|&frame| scribble(machine, FrameRange::new(frame, 1)));
        assert_eq!(pools.group_counters(group, HugeSize::Size1G, Charge::Usage).current, 7);
        assert_eq!(HugePools::new(allocator).map(|_| ()), Err(InitError::TooSmall));
        frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    });
}

/// Invariants M2 and M4: each frame has a descriptor of its own once its owner asks for one, and no frame
/// that is handed out holds descriptors. Counts do not depend on the former contents of frames.
#[test]
fn descriptors_of_a_block_that_was_whole_are_fresh() {
    with_allocator(HostedConfig::new(16 * MIB), |machine, allocator| {
        let blocks: Vec<_> = std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::BLOCK).ok()).collect();
        blocks.iter().for_each(|&frame| scribble(machine, FrameRange::folio(frame, Order::BLOCK)));
        blocks.iter().for_each(|&frame| allocator.free_raw(frame, Order::BLOCK).unwrap());
        allocator.lists().drain_local();
        let frames: Vec<Frame> =
            std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()).take(1200).collect();
        assert_eq!(frames.len(), 1200);
        let mut seen = std::collections::HashSet::new();
        for &frame in &frames {
            let descriptor = allocator.describe(frame).unwrap();
            assert_eq!(allocator.counts().mapcount(frame), 0, "lanes are as fresh");
            let at = std::ptr::from_ref(descriptor).addr();
            assert!(seen.insert(at) && at.is_multiple_of(size_of::<Descriptor>()), "{frame:?} has its own");
            assert!(std::ptr::eq(descriptor, allocator.frames().descriptor(frame)));
        }
        for &frame in &frames {
            let start = machine.direct_map(frame.addr()).addr();
            assert!(!seen.iter().any(|at| (start..start + 4096).contains(at)), "{frame:?} is metadata");
        }
        frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    });
}

/// Invariant M2: only descriptors are taken for descriptors.
#[test]
#[should_panic(expected = "it has none")]
fn a_block_inside_a_larger_folio_has_no_descriptors() {
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let folio = allocator.alloc_raw(Gfp::USER, order(10)).unwrap();
        allocator.frames().descriptor(folio.add(512));
    });
}

#[test]
fn more_ranges_than_there_can_be_are_refused() {
    let machine = HostedConfig::new(MIB).build().unwrap();
    let range = |at: u64| MemoryRange { frames: FrameRange::new(Frame(2 * at), 1), node: 0, zeroed: true };
    let ranges: Vec<MemoryRange> = (0..MAX_RANGES as u64 + 1).map(range).collect();
    machine.run_on(CpuId(0), || {
        let made = hosted::raw::page_allocator(&machine, &ranges, AllocatorConfig::default());
        assert_eq!(made.err(), Some(InitError::TooManyRanges));
    });
}
