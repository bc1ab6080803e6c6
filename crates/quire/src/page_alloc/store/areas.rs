//! Areas of 1 GiB, and which of them contain frames that cannot move.
//!
//! A page of 1 GiB can be formed in an area if all else in it moves. One unmovable frame is enough to prevent
//! it. So requests for such frames look first where there are some already (`store/steer.rs`).
//!
//! A block in small pieces is *tainted* from the first unmovable or reclaimable request that it serves until
//! all of it is free, and no bad frame, edge or table of another block is in it. A mark in its
//! [`Columns`](crate::memmap::Columns) says so, under the block's lock. For each area a word counts its tainted
//! blocks, so an area without any is untainted. The mark outlives a change of the block's group: frames in use
//! stay where they are. A block that is all free may keep it until spares become whole: a shard's spare, or one
//! whose last frame an interrupt freed.
//!
//! An area that cannot be a page of 1 GiB in any case is *cut*: a part of it is no memory, is not there yet or
//! any more, belongs to another zone or to a second range, or contains tables from start-up. It counts as
//! tainted before any frame of it is in use. Memory that is added may complete an area. A frame that goes bad
//! does not cut one: only a tainted block keeps its mark for it.
//!
//! Folios of whole blocks have no mark, nor have frames that a caller names by number.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use crate::addr::{BlockNumber, FrameRange, Order};
use crate::limits::{AREA_REST, AREAS_PASSED, SECTION_BLOCKS};
use crate::memmap::{Block, BootSlice};

/// In the word of an area that is cut.
const CUT: u16 = 1 << 15;
const AREA_BLOCKS: u32 = SECTION_BLOCKS as u32;
const _: () = assert!(AREA_BLOCKS < CUT as u32);

/// The areas that a zone's memory lies in, from the first to the last.
pub(in crate::page_alloc) struct Areas {
    /// The number of the first one.
    first: u32,
    /// For each, how many of its blocks in this zone are tainted, and [`CUT`].
    words: BootSlice<AtomicU16>,
    /// The area in which a block was tainted last.
    last: AtomicU32,
    /// Where the search in other areas goes on.
    next: AtomicU32,
    /// Searches that do not look for the emptiest block of movable frames, since none had many free frames.
    rest: AtomicU32,
    /// The smallest order of a search that found none: smaller ones do not rest.
    rest_order: AtomicU8,
    /// Meanwhile those for orders below this one take the first block with a few free frames.
    few_below: AtomicU8,
    /// The block behind the last one that was taken so.
    resumes_at: AtomicU32,
}

impl Areas {
    /// The areas from number `first` on, by their words ([`Self::first_word`]).
    pub(in crate::page_alloc) fn new(first: u32, words: BootSlice<AtomicU16>) -> Self {
        let [last, next, rest, resumes_at] = [const { AtomicU32::new(0) }; 4];
        let [rest_order, few_below] = [const { AtomicU8::new(0) }; 2];
        Self { first, words, last, next, rest, rest_order, few_below, resumes_at }
    }

    /// The first area in which these pieces of memory lie, and how many there are up to the last.
    pub(in crate::page_alloc) fn span(pieces: impl Iterator<Item = FrameRange>) -> (u32, usize) {
        let areas = pieces.filter(|piece| piece.count > 0).map(|piece| {
            let last = piece.start.add(piece.count - 1);
            (piece.start.block().0 / AREA_BLOCKS, last.block().0 / AREA_BLOCKS + 1)
        });
        let all = areas.reduce(|(first, end), other| (first.min(other.0), end.max(other.1)));
        all.map_or((0, 0), |(first, end)| (first, (end - first) as usize))
    }

    /// The word of an area before any of its memory is in use: it is cut unless one piece covers it.
    pub(in crate::page_alloc) fn first_word(
        area: u32,
        mut pieces: impl Iterator<Item = FrameRange>,
    ) -> AtomicU16 {
        let [from, to] = [area, area + 1].map(|area| BlockNumber(area * AREA_BLOCKS).first_frame());
        let whole = pieces.any(|piece| piece.start <= from && piece.end() >= to);
        AtomicU16::new(if whole { 0 } else { CUT })
    }

    fn index_of(&self, block: BlockNumber) -> usize {
        (block.0 / AREA_BLOCKS).wrapping_sub(self.first) as usize
    }

    /// Notes whether the area of a block can be a page of 1 GiB, since all of it is there. Blocks that another CPU
    /// changed before it called this for the area are seen changed afterwards.
    pub(in crate::page_alloc) fn set_whole(&self, block: BlockNumber, whole: bool) {
        let Some(word) = self.words.get(self.index_of(block)) else { return };
        if whole {
            word.fetch_and(!CUT, Ordering::AcqRel);
        } else {
            word.fetch_or(CUT, Ordering::AcqRel);
        }
    }

    /// Notes that a block in small pieces serves an unmovable or reclaimable request. Under the block's lock.
    #[inline]
    pub(in crate::page_alloc) fn taint(&self, number: BlockNumber, block: &Block) {
        if block.columns().is_some_and(|columns| !columns.is_tainted()) {
            self.set_taint(number, block, true);
        }
    }

    /// Notes that no frame of a block is in use. Under the block's lock.
    #[inline]
    pub(in crate::page_alloc) fn clear(&self, number: BlockNumber, block: &Block) {
        if block.columns().is_some_and(|columns| columns.is_tainted()) {
            self.set_taint(number, block, false);
        }
    }

    #[cold]
    fn set_taint(&self, number: BlockNumber, block: &Block, tainted: bool) {
        block.columns().inspect(|columns| columns.set_tainted(tainted));
        let index = self.index_of(number);
        let Some(word) = self.words.get(index) else { return };
        if !tainted {
            word.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.last.store(index as u32, Ordering::Relaxed);
        if word.fetch_add(1, Ordering::Relaxed) & !CUT == 0 {
            self.rest.store(0, Ordering::Relaxed);
        }
    }

    fn is_tainted(&self, index: usize) -> bool {
        self.words.get(index).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Whether the area of a block is tainted.
    pub(in crate::page_alloc) fn has_taint(&self, block: BlockNumber) -> bool {
        self.is_tainted(self.index_of(block))
    }

    /// The first `count` tainted areas, by their index: this one, and then others in turn.
    fn in_turn_from(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + '_ {
        let (next, all) = (self.next.load(Ordering::Relaxed) as usize, self.words.len());
        let others = (0..all.min(AREAS_PASSED)).map(move |step| (next + step) % all);
        let order = core::iter::once(first).chain(others.filter(move |&index| index != first));
        order.filter(|&index| self.is_tainted(index)).take(count)
    }

    /// The first `count` tainted areas that a search tries, from the one in which a block was tainted last.
    pub(in crate::page_alloc) fn to_try(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        self.in_turn_from(self.last.load(Ordering::Relaxed) as usize, count)
    }

    /// The blocks of an area.
    pub(in crate::page_alloc) fn blocks(&self, index: usize) -> Range<u32> {
        let start = (self.first + index as u32) * AREA_BLOCKS;
        start..start + AREA_BLOCKS
    }

    /// Whether a search for this order may look for the emptiest block of movable frames. If not, it counts as
    /// one that did not.
    pub(in crate::page_alloc) fn may_scan(&self, order: Order) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest == 0 || order.get() < self.rest_order.load(Ordering::Relaxed) {
            return true;
        }
        // Another CPU's store may be lost, which costs a scan more or less.
        self.rest.store(rest - 1, Ordering::Relaxed);
        false
    }

    /// The areas in which a search that rests looks for the first block with a few free frames, each once: from
    /// where the last one ended on to the end of its area, then that area's start, then others. `None` if it
    /// should not look.
    pub(in crate::page_alloc) fn to_resume(
        &self,
        order: Order,
        count: usize,
    ) -> Option<impl Iterator<Item = (usize, Range<u32>)> + '_> {
        let from = self.resumes_at.load(Ordering::Relaxed);
        let looks = order.get() < self.few_below.load(Ordering::Relaxed);
        looks.then(|| {
            let areas = self.in_turn_from(self.index_of(BlockNumber(from)), count);
            areas.flat_map(move |index| {
                let all = self.blocks(index);
                let middle = if all.contains(&from) { from } else { all.start };
                [(index, middle..all.end), (index, all.start..middle)]
            })
        })
    }

    /// Notes which block such a search found.
    pub(in crate::page_alloc) fn resume_behind(&self, block: BlockNumber) {
        self.resumes_at.store(block.0 + 1, Ordering::Relaxed);
    }

    /// Notes that a search for an order found no block with many free frames, but with a `few` of them or not.
    pub(in crate::page_alloc) fn found_little(&self, order: Order, few: bool) {
        let lower = |below: &AtomicU8| below.fetch_min(order.get(), Ordering::Relaxed);
        if self.rest.swap(AREA_REST, Ordering::Relaxed) == 0 {
            // What the rest before has found counts no more.
            self.rest_order.store(u8::MAX, Ordering::Relaxed);
            self.few_below.store(u8::MAX, Ordering::Relaxed);
        }
        lower(&self.rest_order);
        if !few {
            lower(&self.few_below);
        }
    }

    /// Notes that a search found no block at all, up to this area, or none that is tainted: the next one begins
    /// behind it.
    pub(in crate::page_alloc) fn begin_behind(&self, last: Option<usize>) {
        let passed = || self.next.load(Ordering::Relaxed) as usize + AREAS_PASSED;
        let next = last.map_or_else(passed, |last| last + 1);
        self.next.store((next % self.words.len().max(1)) as u32, Ordering::Relaxed);
    }

    /// Whether a block lies in one of the areas.
    pub(in crate::page_alloc) fn cover(&self, block: BlockNumber) -> bool {
        self.index_of(block) < self.words.len()
    }

    /// How many areas are not cut, and how many of these are tainted.
    pub(in crate::page_alloc) fn count(&self) -> [u64; 2] {
        let words = || self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let count = |least: u16| words().filter(|word| (least..CUT).contains(word)).count() as u64;
        [count(0), count(1)]
    }

    /// For each area its first block, and how many of its blocks are tainted by its word; for `validate`.
    pub(in crate::page_alloc) fn tainted_blocks(&self) -> impl Iterator<Item = (BlockNumber, u16)> + '_ {
        let first = |index: usize| BlockNumber(self.blocks(index).start);
        self.words.iter().enumerate().map(move |(index, word)| {
            let count = word.load(Ordering::Relaxed) & !CUT;
            (first(index), count)
        })
    }
}
