//! Changes of state that counting makes, and the block whose record counts for a folio.

use crate::addr::{BlockNumber, Order};
use crate::memmap::{Block, FrameState};

/// Makes the next free of these frames' folios check counts and holds. Under the block's lock.
#[inline]
pub(in crate::page_alloc) fn touch(block: &Block, start: usize, count: usize) {
    FrameState::UNKNOWN.put(block.folio_state_cell());
    let Some(columns) = block.columns() else { return };
    if count == 1 && block.heads.contains(start) {
        return columns.set_state(start, FrameState::UNKNOWN);
    }
    // The state of a folio is its first frame's. Mostly the run is, or is part of, one folio.
    let heads = block.heads.load();
    let first = if heads.contains(start) { start } else { heads.previous_set(start).unwrap_or(start) };
    columns.set_state(first, FrameState::UNKNOWN);
    if count > 1 && heads.next_set(start + 1).is_some_and(|next| next < start + count) {
        columns.set_states(start, count, FrameState::UNKNOWN);
    }
}

/// The first block of the folio of this order around a block.
pub(in crate::page_alloc) fn head_of(block: BlockNumber, order: u8) -> BlockNumber {
    BlockNumber(block.0 & !((1u32 << (order - Order::BLOCK.get())) - 1))
}
