//! Whether a block in small pieces can be whole again.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, Columns};

/// Whether all of the block is free but for its own tables, and none is at a range's edge, bad or a table of
/// another block. A hint without the block's lock.
pub(in crate::page_alloc) fn could_be_whole(block: &Block) -> bool {
    let (free, all) = (block.free.load(Ordering::Relaxed), block.capacity.load(Ordering::Relaxed));
    free == all && is_complete(block)
}

/// Whether the capacity of a block in small pieces is a full block's: no frame lies at a range's edge, is
/// bad, or holds a table of another block.
pub(in crate::page_alloc) fn is_complete(block: &Block) -> bool {
    let own = block.columns().map_or(0, Columns::own_tables);
    usize::from(block.capacity.load(Ordering::Relaxed) + own) == BLOCK_FRAMES
}
