//! Counts the cached translations that lead to each frame, over all CPUs: a filter that makes the check of a
//! freed frame cheap. Exact up to 64 GiB; beyond, frames that far apart share a count, which may cost a
//! needless search but never misses an entry.

use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::allocation::zeroed_slice_box;
use quire::addr::FrameRange;

use crate::mmu::leaf_frames;

/// Slots for 4 KiB frames, at most. They are zeroed memory, so that the host backs only those that are used.
const MAX_SLOTS: u64 = 1 << 24;

/// Counts by frame for 4 KiB leaves and tables, by block for 2 MiB leaves, by gigabyte for 1 GiB leaves.
pub(crate) struct Reach {
    levels: [Box<[AtomicU32]>; 3],
}

impl Reach {
    /// For a machine whose memory ends at frame `frames`; zero counts nothing.
    pub(crate) fn new(frames: u64) -> Self {
        let slots = |unit: u64| match frames.div_ceil(unit).next_power_of_two().min(MAX_SLOTS) {
            _ if frames == 0 => 0,
            slots => slots as usize,
        };
        Self { levels: [1, 2, 3].map(|level| zeroed_slice_box(slots(leaf_frames(level)))) }
    }

    /// The count that `frame` shares, unless nothing is counted.
    fn slot(&self, level: u32, frame: u64) -> Option<&AtomicU32> {
        let slots = &self.levels[level as usize - 1];
        slots.get((frame / leaf_frames(level)) as usize & slots.len().wrapping_sub(1))
    }

    /// A cache added a leaf of `level` at `frame` (tables count as leaves of level 1).
    pub(crate) fn add(&self, level: u32, frame: u64) {
        self.slot(level, frame).iter().for_each(|slot| _ = slot.fetch_add(1, Ordering::SeqCst));
    }

    /// A cache dropped one.
    pub(crate) fn remove(&self, level: u32, frame: u64) {
        let before = self.slot(level, frame).map(|slot| slot.fetch_sub(1, Ordering::SeqCst));
        debug_assert!(before != Some(0));
    }

    /// Whether a cache may reach one of `frames`. `false` is certain.
    pub(crate) fn may_reach(&self, frames: FrameRange) -> bool {
        if frames.count == 0 || self.levels[0].is_empty() {
            return false;
        }
        (1..=3).any(|level| {
            let unit = leaf_frames(level);
            let (first, last) = (frames.start.0 / unit, (frames.end().0 - 1) / unit);
            let slots = &self.levels[level as usize - 1];
            // The slots form a ring; a run of them is one or two slices.
            let count = (last - first + 1).min(slots.len() as u64) as usize;
            let start = first as usize & (slots.len() - 1);
            let straight = count.min(slots.len() - start);
            let used = |slot: &AtomicU32| slot.load(Ordering::SeqCst) != 0;
            slots[start..start + straight].iter().any(used) || slots[..count - straight].iter().any(used)
        })
    }
}

#[cfg(all(test, not(miri)))] // Safe code: nothing for Miri to find, and too many steps for it.
mod tests;
