//! The tables themselves: leaves of 4 KiB, 2 MiB and 1 GiB by guest-physical address, in three levels.
//!
//! Every entry is an atomic at a fixed place for its address and level, so that a virtual CPU walks without a
//! lock and no table is freed during a walk. Entries change under the lock of the tables' owner.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::allocation::zeroed_slice_box;

use crate::mmu::{leaf_frames, shift};
use crate::tlb::Reach;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
/// The entry points to a table.
const TABLE: u64 = 1 << 2;
const FRAME_SHIFT: u32 = 12;

/// The highest level, whose entries are 1 GiB.
pub(super) const TOP: u32 = 3;

/// A copy of a leaf, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    /// The first guest-physical address.
    pub(super) at: u64,
    /// 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    pub(super) level: u32,
    pub(super) frame: u64,
    pub(super) write: bool,
}

impl Leaf {
    pub(super) fn bytes(&self) -> u64 {
        1 << shift(self.level)
    }

    /// The frame of an address inside.
    pub(super) fn frame_of(&self, at: u64) -> u64 {
        self.frame + ((at - self.at) >> FRAME_SHIFT)
    }

    fn of(entry: u64, level: u32, index: u64) -> Self {
        let at = index << shift(level);
        Self { at, level, frame: entry >> FRAME_SHIFT, write: entry & WRITE != 0 }
    }

    fn entry(&self) -> u64 {
        self.frame << FRAME_SHIFT | PRESENT | if self.write { WRITE } else { 0 }
    }
}

/// The meaning of one entry.
enum Entry {
    Empty,
    Table,
    Leaf(Leaf),
}

/// Tables for guest-physical addresses below `bytes`.
pub(super) struct Radix {
    pub(super) bytes: u64,
    levels: [Box<[AtomicU64]>; TOP as usize],
    /// Counts the copies that lead to each frame, over the whole machine.
    reach: Arc<Reach>,
}

impl Radix {
    pub(super) fn new(bytes: u64, reach: Arc<Reach>) -> Self {
        let entries = |level: u32| bytes.div_ceil(1 << shift(level)) as usize;
        Self { bytes, levels: [1, 2, 3].map(|level| zeroed_slice_box(entries(level))), reach }
    }

    fn slot(&self, level: u32, index: u64) -> &AtomicU64 {
        &self.levels[level as usize - 1][index as usize]
    }

    fn load(&self, level: u32, index: u64) -> Entry {
        let entry = self.slot(level, index).load(Ordering::Acquire);
        match entry {
            0 => Entry::Empty,
            TABLE => Entry::Table,
            _ => Entry::Leaf(Leaf::of(entry, level, index)),
        }
    }

    /// The leaf that translates an address.
    pub(super) fn walk(&self, at: u64) -> Option<Leaf> {
        for level in (1..=TOP).rev() {
            match self.load(level, at >> shift(level)) {
                Entry::Empty => return None,
                Entry::Leaf(leaf) => return Some(leaf),
                Entry::Table => {}
            }
        }
        None
    }

    /// Whether smaller leaves than the entry's translate addresses of an entry.
    pub(super) fn has_smaller(&self, level: u32, at: u64) -> bool {
        let index = at >> shift(level);
        matches!(self.load(level, index), Entry::Table) && {
            let below = index << (shift(level) - shift(level - 1));
            let mut entries = below..below + (1 << (shift(level) - shift(level - 1)));
            entries.any(|index| match self.load(level - 1, index) {
                Entry::Empty => false,
                Entry::Leaf(_) => true,
                Entry::Table => self.has_smaller(level - 1, index << shift(level - 1)),
            })
        }
    }

    /// Calls `show` with every leaf that overlaps a range, in ascending order.
    pub(super) fn each(&self, range: Range<u64>, show: &mut impl FnMut(Leaf)) {
        self.each_below(TOP, &range, show);
    }

    fn each_below(&self, level: u32, range: &Range<u64>, show: &mut impl FnMut(Leaf)) {
        for index in indices(level, range) {
            match self.load(level, index) {
                Entry::Empty => {}
                Entry::Leaf(leaf) => show(leaf),
                Entry::Table => self.each_below(level - 1, &part(level, index, range), show),
            }
        }
    }

    /// Drops every leaf that overlaps a range, as a whole, and calls `dropped` with it.
    pub(super) fn drop_range(&self, range: Range<u64>, dropped: &mut impl FnMut(Leaf)) {
        self.drop_below(TOP, &range, dropped);
    }

    fn drop_below(&self, level: u32, range: &Range<u64>, dropped: &mut impl FnMut(Leaf)) {
        if level == 1 {
            return self.drop_pages(range, dropped);
        }
        for index in indices(level, range) {
            match self.load(level, index) {
                Entry::Empty => {}
                Entry::Leaf(leaf) => {
                    self.slot(level, index).store(0, Ordering::Release);
                    self.reach.remove(level, leaf.frame);
                    dropped(leaf);
                }
                Entry::Table => {
                    let part = part(level, index, range);
                    self.drop_below(level - 1, &part, dropped);
                    if part.end - part.start == 1 << shift(level) {
                        self.slot(level, index).store(0, Ordering::Release);
                    }
                }
            }
        }
    }

    fn drop_pages(&self, range: &Range<u64>, dropped: &mut impl FnMut(Leaf)) {
        let pages = indices(1, range);
        let slots = &self.levels[0][pages.start as usize..pages.end as usize];
        for (index, slot) in pages.zip(slots) {
            let entry = slot.load(Ordering::Relaxed);
            if entry != 0 {
                slot.store(0, Ordering::Release);
                let leaf = Leaf::of(entry, 1, index);
                self.reach.remove(1, leaf.frame);
                dropped(leaf);
            }
        }
    }

    /// Stores a leaf in place of a larger one that covers it, an older one and smaller ones inside; calls
    /// `dropped` with those.
    pub(super) fn put(&self, leaf: Leaf, dropped: &mut impl FnMut(Leaf)) {
        for level in (leaf.level + 1..=TOP).rev() {
            let index = leaf.at >> shift(level);
            match self.load(level, index) {
                Entry::Table => {}
                Entry::Empty => self.slot(level, index).store(TABLE, Ordering::Release),
                Entry::Leaf(larger) => {
                    self.slot(level, index).store(TABLE, Ordering::Release);
                    self.reach.remove(level, larger.frame);
                    dropped(larger);
                }
            }
        }
        let index = leaf.at >> shift(leaf.level);
        let before = self.load(leaf.level, index);
        self.reach.add(leaf.level, leaf.frame);
        // One store: a virtual CPU finds the old entry or the new leaf.
        self.slot(leaf.level, index).store(leaf.entry(), Ordering::Release);
        match before {
            Entry::Empty => {}
            Entry::Leaf(old) => {
                self.reach.remove(leaf.level, old.frame);
                dropped(old);
            }
            Entry::Table => self.drop_below(leaf.level - 1, &(leaf.at..leaf.at + leaf.bytes()), dropped),
        }
    }
}

impl Drop for Radix {
    fn drop(&mut self) {
        self.drop_range(0..self.bytes, &mut |_| {});
    }
}

/// The entries of a level that overlap a range.
fn indices(level: u32, range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start >> shift(level)..((range.end - 1) >> shift(level)) + 1 }
}

/// The part of a range in one entry.
fn part(level: u32, index: u64, range: &Range<u64>) -> Range<u64> {
    let start = index << shift(level);
    range.start.max(start)..range.end.min(start + (1 << shift(level)))
}

/// Whether the leaf maps one of these frames.
pub(super) fn maps_one_of(leaf: &Leaf, start: u64, count: u64) -> bool {
    leaf.frame < start + count && start < leaf.frame + leaf_frames(leaf.level)
}

#[cfg(test)]
mod tests;
