//! Entries that were removed from a page table and are not flushed yet.

use super::marks::recorded;
use crate::addr::{Frame, FrameRange, PageSize};
use crate::arch::{Entry, EntryFlags, Level};
use crate::page_alloc::Contents;

/// What an [`Unmapped`] stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Leaves of one size that mapped consecutive frames.
    Leaves {
        leaves: Leaves,
        /// What hardware recorded in each of the leaves, if they are a file's.
        recorded: EntryFlags,
    },
    /// A table and its subtree, to be read only after the flush.
    Table {
        /// The uppermost table.
        frame: Frame,
        level: Level,
    },
    /// The entry at `index` of the table in `table` is marked busy, to be emptied after the flush.
    Busy { table: Frame, index: usize },
}

/// Leaves of one size that mapped consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaves {
    pub(super) frames: FrameRange,
    pub(super) size: PageSize,
    /// Whether it is anonymous memory, not page cache.
    pub(super) anon: bool,
    /// The contents of large leaves.
    pub(super) contents: Contents,
}

impl Leaves {
    pub(super) fn one(leaf: Entry, size: PageSize) -> Self {
        let frames = FrameRange::new(leaf.frame(), size.frames());
        let zeroed = size != PageSize::Size4K && leaf.is_zeroed();
        let contents = if zeroed { Contents::Zeroed } else { Contents::Unknown };
        Self { frames, size, anon: leaf.has(EntryFlags::ANON), contents }
    }
}

/// Translations that were removed from a page table while CPUs may still use them (invariant 2).
///
/// It cannot be dropped, only given to an [`MmuGather`](super::MmuGather). In debug builds dropping one
/// panics; in others its memory is never used again, which is safe but wastes it.
#[must_use = "what was unmapped must be given to a gather"]
#[derive(Debug)]
pub struct Unmapped(Kind);

impl Unmapped {
    /// `leaves` leaves of one size onto consecutive frames, the first of them `first`; counted entries only.
    /// Of a file, hardware recorded the same in all.
    #[inline]
    pub(crate) fn leaves(first: Entry, size: PageSize, leaves: u64) -> Self {
        debug_assert!(!first.has(EntryFlags::SPECIAL));
        debug_assert!(leaves == 1 || size == PageSize::Size4K);
        let one = Leaves::one(first, size);
        let frames = FrameRange::new(one.frames.start, leaves * one.frames.count);
        Self(Kind::Leaves { leaves: Leaves { frames, ..one }, recorded: recorded(first) })
    }

    /// The table that an entry of a table of `level` pointed to.
    #[inline]
    pub(crate) fn table(entry: Entry, level: Level) -> Self {
        Self(Kind::Table { frame: entry.frame(), level: level.below() })
    }

    /// A root table that no CPU uses any more.
    pub(crate) fn root(frame: Frame, level: Level) -> Self {
        Self(Kind::Table { frame, level })
    }

    /// An entry that was marked busy when its leaf was removed.
    #[inline]
    pub(crate) fn busy(table: Frame, index: usize) -> Self {
        Self(Kind::Busy { table, index })
    }

    /// The contents; the caller takes over the duty to flush.
    #[inline]
    pub(super) fn into_kind(self) -> Kind {
        let kind = self.0;
        core::mem::forget(self);
        kind
    }
}

impl Drop for Unmapped {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            panic!("unmapped and never flushed (invariant 2): {:?}", self.0);
        }
    }
}
