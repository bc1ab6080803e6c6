//! Whether a block in small pieces can be whole again.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::limits::BLOCK_FRAMES;
use crate::memmap::Block;

/// Whether all of the block is free, and none is at a range's edge, bad or a table. A hint without the block's
/// lock.
pub(in crate::page_alloc) fn could_be_whole(block: &Block) -> bool {
    let (free, all) = (block.free.load(Ordering::Relaxed), block.capacity.load(Ordering::Relaxed));
    free == all && is_complete(all)
}

/// Whether this capacity is a full block's: no frame lies at a range's edge, is bad, or holds a table.
#[inline]
pub(in crate::page_alloc) fn is_complete(capacity: u16) -> bool {
    usize::from(capacity) == BLOCK_FRAMES
}
