//! How much a block in small pieces can hold: its frames without those of its descriptors.

use core::sync::atomic::Ordering;

use crate::addr::Order;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER, DESCRIPTOR_FRAMES};
use crate::memmap::Block;

/// Frames of a block in small pieces that can be allocated.
pub(in crate::page_alloc) const SMALL_CAPACITY: u16 = (BLOCK_FRAMES - DESCRIPTOR_FRAMES) as u16;

/// The order of a block's descriptors.
pub(in crate::page_alloc) const AREA: Order = match Order::new(DESCRIPTOR_FRAMES.trailing_zeros() as u8) {
    Some(order) => order,
    None => Order::FRAME,
};

/// Whether all of the block is free, and none is at a range's edge or bad. A hint without the block's lock.
pub(in crate::page_alloc) fn could_be_whole(block: &Block) -> bool {
    let (free, all) = (block.free.load(Ordering::Relaxed), block.capacity.load(Ordering::Relaxed));
    free == all && all >= SMALL_CAPACITY && is_complete(block, all)
}

/// Whether this capacity is a full block's: no frame lies at a range's edge or is bad.
#[inline]
pub(in crate::page_alloc) fn is_complete(block: &Block, capacity: u16) -> bool {
    capacity == if block.lanes_at().is_some() { BLOCK_FRAMES as u16 } else { SMALL_CAPACITY }
}

const _: () = assert!(SMALL_CAPACITY as usize + DESCRIPTOR_FRAMES == 1 << BLOCK_ORDER);
