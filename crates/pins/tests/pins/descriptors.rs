//! No request touches a descriptor.

use hosted::raw::RawPages;
use quire::addr::{Frame, Order};
use quire::limits::FRAME_SIZE;
use quire::page_alloc::Gfp;

use super::{give, order, take, with_counting};

const ROWS: usize = FRAME_SIZE as usize;
const PATTERN: u8 = 0xa5;

fn poison(rows: *mut u8) {
    // SAFETY: H1: memory of the machine: descriptors of frames of the test, all of them atomics, which no
    // other thread uses.
    unsafe { rows.write_bytes(PATTERN, ROWS) };
}

fn is_untouched(rows: *mut u8) -> bool {
    // SAFETY: H1: the same memory, which nothing changes while it is read.
    unsafe { std::slice::from_raw_parts(rows, ROWS) }.iter().all(|&byte| byte == PATTERN)
}

/// From the lists, through refills, parked magazines, bulk calls and drains.
#[test]
fn no_descriptor_is_touched() {
    with_counting(|_, allocator| {
        let kept = take(allocator, 3000);
        // The frames of rows, each with the descriptors of 64 frames in a row.
        let start = |frame: &Frame| {
            let row = std::ptr::from_ref(allocator.describe(*frame).unwrap()).cast_mut().cast::<u8>();
            row.wrapping_sub(row.addr() % ROWS)
        };
        let mut tables: Vec<_> = kept.iter().map(start).collect();
        tables.sort_unstable();
        tables.dedup();
        assert!(tables.len() >= 3000 / 64);
        tables.iter().for_each(|&rows| poison(rows));
        let untouched = || tables.iter().all(|&rows| is_untouched(rows));
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
        // A write to one descriptor is detected.
        // SAFETY: H1: memory of the machine: a descriptor of a frame of the test, which no other thread uses.
        unsafe { tables[0].write(!PATTERN) };
        assert!(!untouched(), "the check finds nothing");
        give(allocator, kept);
    });
}
