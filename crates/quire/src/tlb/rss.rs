//! The change of resident memory.

use core::ops::AddAssign;

use crate::addr::PageSize;
use crate::arch::{Entry, EntryFlags};

/// A change of an address space's resident memory, in 4 KiB pages. [`EntryFlags::SPECIAL`] entries do not
/// count. [`super::MmContext::tables`] counts page-table pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RssChange {
    /// Anonymous pages: leaves with [`EntryFlags::ANON`].
    pub anon: i64,
    /// Pages of the page cache: all others.
    pub file: i64,
}

impl RssChange {
    /// The change when `leaves` leaves of `size` with the flags of `entry` appear.
    #[inline]
    pub fn mapped(entry: Entry, size: PageSize, leaves: u64) -> Self {
        let mut change = Self::default();
        change.count(entry, size, leaves as i64);
        change
    }

    /// Counts leaves that appeared, or with a negative number, disappeared.
    #[inline]
    pub(crate) fn count(&mut self, entry: Entry, size: PageSize, leaves: i64) {
        let pages = leaves * size.frames() as i64;
        if entry.has(EntryFlags::SPECIAL) {
        } else if entry.has(EntryFlags::ANON) {
            self.anon += pages;
        } else {
            self.file += pages;
        }
    }
}

impl AddAssign for RssChange {
    fn add_assign(&mut self, other: Self) {
        self.anon += other.anon;
        self.file += other.file;
    }
}
