//! The words of a frame that holds a page table or a page of a gather's batch: the one place where page-table
//! memory is reached.
//!
//! # Invariants
//!
//! W1. A frame that is named here is memory that the page allocator gave to the page tables of one address
//!     space, to one gather, or to the window of page descriptors. Until it is freed, all its users reach it
//!     through the atomics below (hardware, or its model, included). Only [`clear_table`] does not, before
//!     anything else names the frame. It is freed only when neither a walker nor a CPU can reach it any more
//!     (invariant 4).

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::limits::{FRAME_SIZE, TABLE_ENTRIES};
use crate::platform::TablePlatform;

/// The 512 words of a frame that holds a page table or a page of a gather's batch.
#[inline]
pub(crate) fn words<P: TablePlatform>(platform: &P, frame: Frame) -> &[AtomicU64; TABLE_ENTRIES] {
    let pointer = platform.direct_map(frame.addr()).cast::<[AtomicU64; TABLE_ENTRIES]>();
    // SAFETY: W1: the frame is memory, aligned to 4 KiB, and all its users reach it by atomics until it is
    // freed. The caller keeps no reference to the words of a table that it frees.
    unsafe { &*pointer }
}

/// Empties a frame that is about to become a page table. Not a task for
/// [`FramePlatform::clear`](crate::platform::FramePlatform::clear), which a machine for
/// measurements may only count.
#[inline]
pub(crate) fn clear_table<P: TablePlatform>(platform: &P, frame: Frame) {
    let pointer = platform.direct_map(frame.addr());
    // SAFETY: W1: the frame is memory and was just allocated, so nothing else names it.
    unsafe { pointer.write_bytes(0, FRAME_SIZE as usize) };
}

/// A page-table page: where it is, its level, and its entries.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    words: &'a [AtomicU64; TABLE_ENTRIES],
    frame: Frame,
    level: Level,
}

impl<'a> Table<'a> {
    /// The table in `frame`, which W1 speaks of.
    #[inline]
    pub(crate) fn at<P: TablePlatform>(platform: &'a P, frame: Frame, level: Level) -> Self {
        Self { words: words(platform, frame), frame, level }
    }

    /// The table that a table entry read from this table points to.
    #[inline]
    pub(crate) fn child<P: TablePlatform>(self, platform: &'a P, entry: Entry) -> Self {
        debug_assert!(entry.is_table(self.level));
        Self::at(platform, entry.frame(), self.level.below())
    }

    /// The table's frame.
    #[inline]
    pub(crate) fn frame(self) -> Frame {
        self.frame
    }

    /// The table's level.
    #[inline]
    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// The entry for `addr`, which the table covers.
    #[inline]
    pub(crate) fn index(self, addr: VirtAddr) -> usize {
        self.level.index(addr)
    }

    /// The addresses of the entry for `addr`.
    #[inline]
    pub(crate) fn extent(self, addr: VirtAddr) -> VirtRange {
        VirtRange::from_len(addr.align_down(self.level.entry_bytes()), self.level.entry_bytes())
    }

    /// The entry at `index` as it is now; what a table pointer leads to is visible.
    #[inline]
    pub(crate) fn load(self, index: usize) -> Entry {
        Entry::from_bits(self.words[index].load(Ordering::Acquire))
    }

    /// The entry of a table that only the caller changes: it is detached and flushed, or not yet installed.
    #[inline]
    pub(crate) fn load_private(self, index: usize) -> Entry {
        Entry::from_bits(self.words[index].load(Ordering::Relaxed))
    }

    /// Writes an entry that hardware cannot change at this moment: it is not present, or holds every bit that
    /// hardware could set ([`Entry::is_settled`]). What was stored before is visible to a CPU that sees the
    /// entry.
    #[inline]
    pub(crate) fn store(self, index: usize, entry: Entry) {
        self.words[index].store(entry.bits(), Ordering::Release);
    }

    /// Puts an entry in the place of another, which is returned with all that hardware set until then
    /// (invariant 3).
    #[inline]
    pub(crate) fn swap(self, index: usize, entry: Entry) -> Entry {
        Entry::from_bits(self.words[index].swap(entry.bits(), Ordering::AcqRel))
    }

    /// Puts `new` in the place of `old`, unless the entry is no longer `old`; what it is then.
    #[inline]
    pub(crate) fn compare_exchange(self, index: usize, old: Entry, new: Entry) -> Result<(), Entry> {
        self.words[index]
            .compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Entry::from_bits)
    }

    /// Copies entries, none of which hardware can change to matter, to the same places in a table that only
    /// the caller uses, without some flags.
    #[inline]
    pub(crate) fn copy_to(self, target: Table<'_>, entries: Range<usize>, lost: EntryFlags) {
        for (from, to) in self.words[entries.clone()].iter().zip(&target.words[entries]) {
            to.store(from.load(Ordering::Relaxed) & !lost.bits(), Ordering::Release);
        }
    }

    /// The same with leaves, of which both sides lose the right to store; eight at a time where all of them
    /// are settled. Calls `slowly` with those that are not.
    #[inline]
    pub(crate) fn copy_weakened(
        self,
        target: Table<'_>,
        entries: Range<usize>,
        mut slowly: impl FnMut(Range<usize>),
    ) {
        let settled = EntryFlags::ACCESSED.union(EntryFlags::DIRTY).bits();
        let kept = !EntryFlags::WRITE.bits();
        let mut at = entries.start;
        while at < entries.end {
            let end = entries.end.min(at + 8);
            let (from, to) = (&self.words[at..end], &target.words[at..end]);
            if from.iter().fold(settled, |all, word| all & word.load(Ordering::Relaxed)) == settled {
                for (from, to) in from.iter().zip(to) {
                    let leaf = from.load(Ordering::Relaxed) & kept;
                    to.store(leaf, Ordering::Release);
                    from.store(leaf, Ordering::Release);
                }
            } else {
                slowly(at..end);
            }
            at = end;
        }
    }

    /// How many entries from `index` on belong to the run that `first` at `index` starts, in a table of this
    /// grain, which only the caller changes: of each group of so many entries only the first is looked at.
    #[inline]
    pub(crate) fn run_by_grain(self, index: usize, first: Entry, grain: usize) -> usize {
        // Below two cache lines nothing is saved.
        if grain <= 8 {
            return self.run_length(index, TABLE_ENTRIES, first);
        }
        let starts = (index + grain..TABLE_ENTRIES).step_by(grain);
        let more = starts.take_while(|&at| self.load_private(at).continues(first, (at - index) as u64));
        (1 + more.count()) * grain
    }

    /// Whether all entries of a table of the lowest level are one run that `first` starts; what is recorded
    /// in any of them, or the first that is not of the run.
    pub(crate) fn whole_run(self, first: Entry) -> Result<EntryFlags, usize> {
        let plain = first.without(EntryFlags::HISTORY);
        let (mut expected, mut differ) = (plain, 0);
        for word in self.words {
            differ |= word.load(Ordering::Relaxed) ^ expected.bits();
            expected = expected.next_in_run();
        }
        if differ & !EntryFlags::HISTORY.bits() == 0 {
            // What is expected has none of these bits.
            return Ok(Entry::from_bits(differ).flags());
        }
        Err(count_run(self.words, plain))
    }

    /// How many entries from `index` on, at most up to `end`, continue the run that `first` at `index`
    /// starts. Eight at a time without a branch between them: this is what a scan of a full table spends its
    /// time on.
    #[inline]
    pub(crate) fn run_length(self, index: usize, end: usize, first: Entry) -> usize {
        let rest = &self.words[index + 1..end];
        let (groups, tail) = rest.as_chunks::<8>();
        let mut expected = first.next_in_run();
        for (at, group) in groups.iter().enumerate() {
            let mut differ = 0;
            let mut step = expected;
            for word in group {
                differ |= step.differs_from(Entry::from_bits(word.load(Ordering::Relaxed)));
                step = step.next_in_run();
            }
            if differ != 0 {
                return 1 + at * 8 + count_run(group, expected);
            }
            expected = step;
        }
        1 + groups.len() * 8 + count_run(tail, expected)
    }
}

/// How many of the words, from the first on, are a run that starts with `expected`.
#[inline]
fn count_run(words: &[AtomicU64], mut expected: Entry) -> usize {
    for (at, word) in words.iter().enumerate() {
        if expected.differs_from(Entry::from_bits(word.load(Ordering::Relaxed))) != 0 {
            return at;
        }
        expected = expected.next_in_run();
    }
    words.len()
}

#[cfg(test)]
mod tests;
