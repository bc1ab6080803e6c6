//! Memory so bad that a block has no room for its own descriptors.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use quire::addr::{FrameRange, Order};
use quire::limits::DESCRIPTOR_FRAMES;
use quire::page_alloc::{FrameInfo, Gfp};

use testkit::with_allocator;

const MIB: u64 = 1 << 20;

/// The block is lost as a whole: none of it is handed out or counted as free.
#[test]
fn a_block_that_is_bad_all_over_is_lost() {
    with_allocator(HostedConfig::new(16 * MIB), |_, allocator| {
        let start = allocator.alloc_raw(Gfp::USER, Order::BLOCK).expect("memory");
        let folio = FrameRange::folio(start, Order::BLOCK);
        allocator.frames().hold(folio);
        (0..folio.count)
            .step_by(DESCRIPTOR_FRAMES)
            .for_each(|at| allocator.frames().mark_again(start.add(at)));
        allocator.release_raw(folio);
        allocator.lists().drain_local();
        assert_eq!(allocator.frames().frame_info(start), FrameInfo::Metadata);
        assert_eq!(allocator.frames().bad_frames(), folio.count / DESCRIPTOR_FRAMES as u64);
        let free = allocator.memory_info().free;
        let taken: Vec<_> =
            std::iter::from_fn(|| allocator.alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
        assert!(taken.len() as u64 <= free && !taken.iter().any(|frame| frame.block() == start.block()));
        taken
            .into_iter()
            .for_each(|frame| allocator.free_raw(frame, Order::FRAME).expect("it was handed out"));
    });
}
