//! Carries what hardware recorded in leaves of files to the pages.
//!
//! A page still counts as mapped when it is marked, so it cannot have been freed. A folio of whole blocks has
//! one mark of each kind; any other page has its own, of which 64 stand in one word.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::words::Table;
use crate::addr::{Frame, FrameRange, PageSize};
use crate::arch::{Entry, EntryFlags};
use crate::limits::BLOCK_FRAMES;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;

/// Frames whose marks stand in one word.
const WORD_FRAMES: u64 = u64::BITS as u64;

/// What hardware records in a leaf.
const RECORDED: EntryFlags = EntryFlags::ACCESSED.union(EntryFlags::DIRTY);

/// What hardware recorded in a leaf of a file; nothing for memory that has no marks.
#[inline]
pub(crate) fn recorded(leaf: Entry) -> EntryFlags {
    let unmarked = EntryFlags::ANON.union(EntryFlags::SPECIAL);
    let has_marks = leaf.flags().intersection(unmarked) == EntryFlags::NONE;
    if has_marks { leaf.flags().intersection(RECORDED) } else { EntryFlags::NONE }
}

/// Marks the page of a file to which a 4 KiB leaf led.
#[inline]
pub(super) fn carry_page<P: TablePlatform>(allocator: &PageAllocator<'_, P>, leaf: Entry) {
    let (recorded, frame) = (recorded(leaf), leaf.frame());
    if recorded != EntryFlags::NONE {
        let bit_if = |flag| u64::from(recorded.contains(flag)) << (frame.0 % WORD_FRAMES);
        allocator.frames().mark(frame, bit_if(EntryFlags::ACCESSED), bit_if(EntryFlags::DIRTY));
    }
}

/// Marks pages of files to which leaves of `size` led that all recorded the same.
#[inline]
pub(super) fn carry<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    frames: FrameRange,
    size: PageSize,
    recorded: EntryFlags,
) {
    // Anonymous memory, which is unmapped most, records nothing: it pays for no call.
    if recorded != EntryFlags::NONE {
        mark_all(allocator, frames, size, recorded);
    }
}

#[inline(never)]
fn mark_all<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    frames: FrameRange,
    size: PageSize,
    recorded: EntryFlags,
) {
    let step = if size == PageSize::Size4K { frames.count } else { size.frames() };
    for start in (0..frames.count).step_by(step as usize) {
        let first = frames.start.add(start);
        let one_mark = size != PageSize::Size4K && allocator.frames().is_of_whole_blocks(first);
        by_word(first, if one_mark { 1 } else { step }, |frame, _, bits| {
            let bits_if = |flag| if recorded.contains(flag) { bits } else { 0 };
            allocator.frames().mark(frame, bits_if(EntryFlags::ACCESSED), bits_if(EntryFlags::DIRTY));
        });
    }
}

/// Marks pages of files to which these 4 KiB leaves of a table lead, that only the caller changes. They map
/// consecutive frames, and differ in what they recorded.
///
/// `marked` is the last folio of whole blocks that got every mark from the caller, who reads tables that were
/// flushed before the first of them. It is not marked again: if a mark was taken since, then after all stores
/// through these tables, so what was saved then has them.
#[inline]
pub(super) fn carry_each<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    table: Table<'_>,
    leaves: Range<usize>,
    marked: &mut FrameRange,
) {
    let mut at = leaves.start;
    while at < leaves.end {
        let first = table.load_private(at).frame();
        let end = leaves.end.min(at + BLOCK_FRAMES - first.index_in_block());
        if marked.contains(first) {
            at = end;
            continue;
        }
        if allocator.frames().is_of_whole_blocks(first) {
            let found = recorded_by_any(table, at..end);
            let bit_if = |flag| u64::from(found.contains(flag));
            allocator.frames().mark(first, bit_if(EntryFlags::ACCESSED), bit_if(EntryFlags::DIRTY));
            if found == RECORDED {
                *marked = allocator.frames().folio_of_whole_blocks(first);
            }
        } else {
            carry_apart(allocator, table, at..end, first);
        }
        at = end;
    }
}

/// What any of the leaves recorded. Mostly the first one tells: a folio of whole blocks has one mark of each
/// kind.
fn recorded_by_any(table: Table<'_>, leaves: Range<usize>) -> EntryFlags {
    let mut found = EntryFlags::NONE;
    for at in leaves {
        found = found.union(table.load_private(at).flags().intersection(RECORDED));
        if found == RECORDED {
            break;
        }
    }
    found
}

/// Marks pages of a block in small pieces, the first of which is `first`, by words.
fn carry_apart<P: TablePlatform>(
    allocator: &PageAllocator<'_, P>,
    table: Table<'_>,
    leaves: Range<usize>,
    first: Frame,
) {
    by_word(first, leaves.len() as u64, |frame, steps, _| {
        let (mut accessed, mut dirty) = (0, 0);
        for step in steps {
            let leaf = table.load_private(leaves.start + step as usize);
            let bit = (first.0 + step) % WORD_FRAMES;
            accessed |= u64::from(leaf.has(EntryFlags::ACCESSED)) << bit;
            dirty |= u64::from(leaf.has(EntryFlags::DIRTY)) << bit;
        }
        allocator.frames().mark(frame, accessed, dirty);
    });
}

/// Calls `each` for the parts of a run of frames whose marks share a word: with the first frame, the part's
/// place in the run, and its bits.
#[inline]
fn by_word(first: Frame, count: u64, mut each: impl FnMut(Frame, Range<u64>, u64)) {
    let mut at = 0;
    while at < count {
        let frame = first.add(at);
        let bit = frame.0 % WORD_FRAMES;
        let frames = (count - at).min(WORD_FRAMES - bit);
        each(frame, at..at + frames, u64::MAX >> (WORD_FRAMES - frames) << bit);
        at += frames;
    }
}
