//! What is left of a folio of which some frames are freed.
#![forbid(unsafe_code)]

use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, FrameMask, FrameState};

/// Splits a folio of which only some frames are freed: each frame that stays becomes a folio of its own, in
/// unknown state. Under the block's lock. Touches no descriptor.
pub(in crate::page_alloc) fn split_remainders(block: &Block, freed: FrameMask) {
    let used = block.used.load();
    if used.without(freed).is_empty()
        || used.without(block.heads.load()).without(block.held.load()).is_empty()
    {
        // Nothing stays, or single frames, which need no split.
        return;
    }
    let make_heads = |start: usize, count: usize| {
        if count > 0 {
            make_heads(block, start, count, 1);
        }
    };
    for (start, count) in freed.runs() {
        if !block.heads.contains(start) {
            let mut at = start;
            while at > 0 && !block.heads.contains(at) && !freed.contains(at - 1) {
                at -= 1;
            }
            make_heads(at, start - at);
        }
        // All at once: the search for the head, and the origins, are needed once then.
        let (first, mut end) = (start + count, start + count);
        while end < BLOCK_FRAMES && is_tail(block, end) && !freed.contains(end) {
            end += 1;
        }
        make_heads(first, end - first);
    }
}

/// Whether the used frame is a folio by itself. Under the block's lock.
#[inline]
pub(in crate::page_alloc) fn is_single(block: &Block, index: usize) -> bool {
    block.heads.contains(index) && (index + 1 == BLOCK_FRAMES || !is_tail(block, index + 1))
}

/// Makes every `step`-th of `count` frames of a folio start one in unknown state. Under the block's lock.
pub(in crate::page_alloc) fn make_heads(block: &Block, start: usize, count: usize, step: usize) {
    let head = block.heads.load().previous_set(start).unwrap_or(start);
    if let Some(columns) = block.columns() {
        columns.set_states(start, count, FrameState::UNKNOWN);
        columns.pass_origin(head, start, count, step);
    }
    match step {
        1 => block.heads.insert_run(start, count),
        _ => (start..start + count).step_by(step).for_each(|at| block.heads.insert_run(at, 1)),
    }
}

/// Whether the frame is in a folio in use, not at its start. Metadata and absent frames are held: never.
fn is_tail(block: &Block, index: usize) -> bool {
    block.used.contains(index) && !block.heads.contains(index) && !block.held.contains(index)
}
