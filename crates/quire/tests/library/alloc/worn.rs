//! A block with many bad frames.

use hosted::raw::RawPages;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{FrameRange, Order};
use quire::page_alloc::{FrameInfo, Gfp, Verdict};
use quire::platform::Context;

use testkit::with_allocator;

const MIB: u64 = 1 << 20;
/// One frame of so many is bad.
const EACH: usize = 8;

/// Only the bad frames are lost: a block needs none of its own to be used in small pieces.
#[test]
fn of_a_block_that_is_bad_all_over_only_the_bad_frames_are_lost() {
    with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).expect("memory");
        let folio = FrameRange::folio(start, Order::BLOCK);
        allocator.frames().hold(folio);
        (0..folio.count).step_by(EACH).for_each(|at| allocator.frames().mark_again(start.add(at)));
        allocator.release_raw(folio);
        allocator.lists().drain_local();
        assert_eq!(allocator.frames().frame_info(start), FrameInfo::Bad);
        let bad = folio.count / EACH as u64;
        assert_eq!(allocator.frames().bad_frames(), bad);
        let free = allocator.memory_info().free;
        let taken: Vec<_> =
            std::iter::from_fn(|| allocator.alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
        let ours = taken.iter().filter(|frame| frame.block() == start.block()).count() as u64;
        assert!(taken.len() as u64 <= free && ours == folio.count - bad, "{ours}");
        taken
            .into_iter()
            .for_each(|frame| allocator.free_raw(frame, Order::FRAME).expect("it was handed out"));
    });
}

/// The group of its block does not say whether a frame in use stays where it is.
#[test]
fn a_frame_of_an_unmovable_block_that_is_freed_meanwhile_is_lost() {
    with_allocator(HostedConfig::new(16 * MIB), |machine, allocator| {
        for at in 1..=24 {
            let frame = allocator.alloc_raw(Gfp::KERNEL, Order::FRAME).expect("memory");
            let free = || allocator.free_raw(frame, Order::FRAME).expect("it was handed out");
            let (plan, context) = (InterruptPlan::Nth(at), Context::HardInterrupt);
            let ran = machine.interrupt_at_calls(plan, context, free, || allocator.condemn(frame));
            assert!(ran.events >= at, "the frame is freed");
            assert_eq!(ran.result, Verdict::Lost, "freed at call {at}");
        }
    });
}
