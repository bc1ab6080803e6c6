//! The words of a frame with a page table or a page of a gather: all access to page-table memory.
//!
//! # Invariants
//!
//! W1. A frame that is named here is memory that the page allocator gave to the page tables of one address
//!     space, to one gather, or to the window of page descriptors. Until it is freed, all its users reach it
//!     through the atomics below (hardware, or its model, included). Only [`clear_table`] does not, before
//!     anything else names the frame. It is freed when no walker and no CPU can reach it (invariant 4). The
//!     kernel's root ([`TablePlatform::kernel_root`]) is the one frame of another owner: only its upper half
//!     is read.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::limits::{FRAME_SIZE, TABLE_ENTRIES};
use crate::platform::TablePlatform;

/// The entries of a root that translate user addresses. The rest belong to the kernel: all roots have the same
/// ones ([`TablePlatform::kernel_root`]), and no verb reads or writes them (W5).
pub(crate) const USER_ENTRIES: usize = TABLE_ENTRIES / 2;

/// The 512 words of such a frame.
#[inline]
pub(crate) fn words<P: TablePlatform>(platform: &P, frame: Frame) -> &[AtomicU64; TABLE_ENTRIES] {
    let pointer = platform.direct_map(frame.addr()).cast::<[AtomicU64; TABLE_ENTRIES]>();
    // SAFETY: W1: the frame is memory, aligned to 4 KiB, and all its users reach it by atomics until it is
    // freed. The caller keeps no reference to the words of a table that it frees.
    unsafe { &*pointer }
}

/// Empties a frame that is about to become a page table.
/// [`FramePlatform::clear`](crate::platform::FramePlatform::clear) does not do: a machine may only count
/// calls.
#[inline]
pub(crate) fn clear_table<P: TablePlatform>(platform: &P, frame: Frame) {
    let pointer = platform.direct_map(frame.addr());
    // SAFETY: W1: the frame is memory and was just allocated, so nothing else names it.
    unsafe { pointer.write_bytes(0, FRAME_SIZE as usize) };
}

/// A page-table page.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    words: &'a [AtomicU64; TABLE_ENTRIES],
    frame: Frame,
    level: Level,
}

impl<'a> Table<'a> {
    /// The table in `frame`, to which W1 applies.
    #[inline]
    pub(crate) fn at<P: TablePlatform>(platform: &'a P, frame: Frame, level: Level) -> Self {
        Self { words: words(platform, frame), frame, level }
    }

    /// The table that an entry of this table points to.
    #[inline]
    pub(crate) fn child<P: TablePlatform>(self, platform: &'a P, entry: Entry) -> Self {
        debug_assert!(entry.is_table(self.level));
        Self::at(platform, entry.frame(), self.level.below())
    }

    #[inline]
    pub(crate) fn frame(self) -> Frame {
        self.frame
    }

    #[inline]
    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// The entry for `addr`, which the table covers.
    #[inline]
    pub(crate) fn index(self, addr: VirtAddr) -> usize {
        self.level.index(addr)
    }

    /// The addresses that the entry for `addr` covers.
    #[inline]
    pub(crate) fn extent(self, addr: VirtAddr) -> VirtRange {
        VirtRange::from_len(addr.align_down(self.level.entry_bytes()), self.level.entry_bytes())
    }

    /// The current entry at `index`. If it points to a table, that table's contents are visible.
    #[inline]
    pub(crate) fn load(self, index: usize) -> Entry {
        Entry::from_bits(self.words[index].load(Ordering::Acquire))
    }

    /// The entry of a table that only the caller changes: detached and flushed, or not yet installed.
    #[inline]
    pub(crate) fn load_private(self, index: usize) -> Entry {
        Entry::from_bits(self.words[index].load(Ordering::Relaxed))
    }

    /// Writes an entry that hardware cannot change now: it is not present, or holds every bit that hardware
    /// could set ([`Entry::is_settled`]). A CPU that sees the entry sees all earlier stores.
    #[inline]
    pub(crate) fn store(self, index: usize, entry: Entry) {
        self.words[index].store(entry.bits(), Ordering::Release);
    }

    /// Replaces an entry and returns the old one with all bits that hardware set until then (invariant 3).
    #[inline]
    pub(crate) fn swap(self, index: usize, entry: Entry) -> Entry {
        Entry::from_bits(self.words[index].swap(entry.bits(), Ordering::AcqRel))
    }

    /// Replaces `old` by `new`, or returns the entry if it is not `old`.
    #[inline]
    pub(crate) fn compare_exchange(self, index: usize, old: Entry, new: Entry) -> Result<(), Entry> {
        self.words[index]
            .compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Entry::from_bits)
    }

    /// Copies entries, less some flags, to the same places of a table that only the caller uses. Bits that
    /// hardware sets in them meanwhile do not matter.
    #[inline]
    pub(crate) fn copy_to(self, target: Table<'_>, entries: Range<usize>, lost: EntryFlags) {
        for (from, to) in self.words[entries.clone()].iter().zip(&target.words[entries]) {
            to.store(from.load(Ordering::Relaxed) & !lost.bits(), Ordering::Release);
        }
    }

    /// Copies leaves, of which both sides lose the right to store; eight at a time where all of them are
    /// settled. Calls `slowly` with the others.
    #[inline]
    pub(crate) fn copy_weakened(
        self,
        target: Table<'_>,
        entries: Range<usize>,
        mut slowly: impl FnMut(Range<usize>),
    ) {
        let kept = !EntryFlags::WRITE.bits();
        let mut at = entries.start;
        while at < entries.end {
            let end = entries.end.min(at + 8);
            let (from, to) = (&self.words[at..end], &target.words[at..end]);
            if all_settled(from) {
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

    /// Moves leaves to the entries of `target` from `to` on, which are empty; eight at a time where all of
    /// them are settled. Calls `slowly` with the index and the target of each of the others.
    #[inline]
    pub(crate) fn move_settled(
        self,
        entries: Range<usize>,
        target: Table<'_>,
        to: usize,
        mut slowly: impl FnMut(usize, usize),
    ) {
        let mut at = entries.start;
        while at < entries.end {
            let (end, to) = (entries.end.min(at + 8), to + at - entries.start);
            let words = &self.words[at..end];
            if words.len() == 8 && all_settled(words) {
                for (from, to) in words.iter().zip(&target.words[to..to + 8]) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Release);
                    from.store(Entry::EMPTY.bits(), Ordering::Release);
                }
            } else {
                (at..end).for_each(|from| slowly(from, to + from - at));
            }
            at = end;
        }
    }

    /// How many entries from `index` on belong to the run that `first` at `index` starts, in a table of this
    /// grain that only the caller changes. Only the first entry of each group is compared.
    #[inline]
    pub(crate) fn run_by_grain(self, index: usize, first: Entry, grain: usize) -> usize {
        // Up to a cache line this saves nothing.
        if grain <= 8 {
            return self.run_length(index, TABLE_ENTRIES, first);
        }
        let (mut at, mut expected) = (index + grain, first.in_run(grain as u64));
        while at < TABLE_ENTRIES && expected.differs_from(self.load_private(at)) == 0 {
            (at, expected) = (at + grain, expected.in_run(grain as u64));
        }
        at - index
    }

    /// How many entries from `index` on, up to `end`, are empty. Looks at eight at a time.
    pub(crate) fn empty_from(self, index: usize, end: usize) -> usize {
        let (groups, tail) = self.words[index..end].as_chunks::<8>();
        let is_empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        let all_empty = |group: &&[AtomicU64; 8]| {
            group.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed)) == 0
        };
        let whole = groups.iter().take_while(all_empty).count();
        let rest: &[AtomicU64] = groups.get(whole).map_or(tail, |group| group);
        whole * 8 + rest.iter().take_while(|word| is_empty(word)).count()
    }

    /// The history bits in any leaf if all entries of a lowest-level table are one run that `first` starts;
    /// otherwise the index of the first that is not of the run.
    pub(crate) fn whole_run(self, first: Entry) -> Result<EntryFlags, usize> {
        let plain = first.without(EntryFlags::HISTORY);
        let (mut expected, mut differ) = (plain, 0);
        for word in self.words {
            differ |= word.load(Ordering::Relaxed) ^ expected.bits();
            expected = expected.next_in_run();
        }
        if differ & !EntryFlags::HISTORY.bits() == 0 {
            // The expected entries have none of these bits.
            return Ok(Entry::from_bits(differ).flags());
        }
        Err(count_run(self.words, plain))
    }

    /// How many entries from `index` on, up to `end`, continue the run that `first` at `index` starts.
    /// Compares eight at a time without a branch, since a scan of a full table spends its time here.
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

/// Whether all of these are leaves that were used and stored through, so that they are settled.
#[inline]
fn all_settled(words: &[AtomicU64]) -> bool {
    let settled = EntryFlags::ACCESSED.union(EntryFlags::DIRTY).bits();
    words.iter().fold(settled, |all, word| all & word.load(Ordering::Relaxed)) == settled
}

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
