//! No request touches a descriptor.

use hosted::raw::RawPages;
use quire::addr::{BlockNumber, Frame, Order};
use quire::limits::BLOCK_FRAMES;
use quire::memmap::Descriptor;
use quire::page_alloc::Gfp;
use quire::platform::Platform;

use super::{give, order, take, with_counting};

/// The descriptors of a block in small pieces, which stand at its start.
const ROWS: usize = BLOCK_FRAMES * size_of::<Descriptor>();
const PATTERN: u8 = 0xa5;

fn poison<P: Platform>(platform: &P, block: BlockNumber) {
    // SAFETY: H1: memory of the machine: the area of a block in small pieces, all of it atomics, which no other thread uses.
    unsafe { platform.direct_map(block.first_frame().addr()).write_bytes(PATTERN, ROWS) };
}

fn is_untouched<P: Platform>(platform: &P, block: BlockNumber) -> bool {
    let at = platform.direct_map(block.first_frame().addr());
    // SAFETY: H1: the same memory, which nothing changes while it is read.
    unsafe { std::slice::from_raw_parts(at, ROWS) }.iter().all(|&byte| byte == PATTERN)
}

/// From the lists, through refills, parked magazines, bulk calls and drains.
#[test]
fn no_descriptor_is_touched() {
    with_counting(|counting, allocator| {
        let kept = take(allocator, 3000);
        let mut blocks: Vec<_> = kept.iter().map(|frame| frame.block()).collect();
        blocks.dedup();
        blocks.iter().for_each(|&block| poison(counting, block));
        let untouched = || blocks.iter().all(|&block| is_untouched(counting, block));
        for _ in 0..3 {
            give(allocator, &take(allocator, 3000));
        }
        assert!(untouched(), "single folios");
        for size in 1..=3 {
            let folios: Vec<_> =
                (0..200).map(|_| allocator.alloc_raw(Gfp::USER, order(size)).unwrap()).collect();
            folios.iter().for_each(|&folio| allocator.free_raw(folio, order(size)).unwrap());
        }
        assert!(untouched(), "orders 1 to 3");
        let (given, kept) = kept.split_at(2000);
        give(allocator, given);
        let mut bulk = [Frame(0); 1500];
        assert_eq!(allocator.alloc_bulk_raw(Gfp::USER, Order::FRAME, &mut bulk), 1500);
        allocator.free_bulk_raw(Order::FRAME, &bulk).unwrap();
        allocator.lists().drain_all();
        assert!(untouched(), "bulk calls and drains");
        // A use of a descriptor by the owner of its frame is detected.
        allocator.frames().descriptor(kept[999]).reset();
        assert!(!untouched(), "the check finds nothing");
        give(allocator, kept);
    });
}
