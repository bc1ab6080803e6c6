//! Levels of a page table and the two paging modes.

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::limits::{FRAME_SHIFT, FRAME_SIZE, TABLE_ENTRIES};

/// How many levels of tables a translation walks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PagingMode {
    /// 48-bit addresses (`CR4.LA57` clear).
    #[default]
    FourLevel,
    /// 57-bit addresses (`CR4.LA57` set).
    FiveLevel,
}

impl PagingMode {
    /// The level of the root table.
    #[inline]
    pub const fn top(self) -> Level {
        match self {
            Self::FourLevel => Level::P4D,
            Self::FiveLevel => Level::PGD,
        }
    }

    /// User addresses: the lower half, less one guard page at its end as on Linux.
    #[inline]
    pub const fn user_range(self) -> VirtRange {
        let half = 1 << (self.top().shift() + 8);
        VirtRange::new(VirtAddr(0), VirtAddr(half - FRAME_SIZE))
    }
}

/// Where the window of page descriptors begins, as in Linux with four levels. It has room for the descriptors
/// of [`MAX_PHYS_BYTES`](crate::limits::MAX_PHYS_BYTES), 1 TiB.
#[cfg(feature = "published")]
pub(crate) const WINDOW_BASE: u64 = 0xffff_ea00_0000_0000;

/// A level of the page table, counted from the leaves: 0 has 4 KiB leaves. As wide as a register, so that
/// structures around it have no padding, which each step of a walk would copy in overlapping pieces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Level(u64);

impl Level {
    /// Page-table entries: 4 KiB leaves.
    pub const PTE: Self = Self(0);
    /// Page-middle directory: 2 MiB leaves or tables of 4 KiB leaves.
    pub const PMD: Self = Self(1);
    /// Page-upper directory: 1 GiB leaves or tables.
    pub(crate) const PUD: Self = Self(2);
    /// Fourth level; the root with 48-bit addresses.
    pub const P4D: Self = Self(3);
    /// Fifth level; the root with 57-bit addresses.
    pub(crate) const PGD: Self = Self(4);

    /// The level as a number, 0 to 4.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0 as u8
    }

    /// The level below, of a level that is not the lowest.
    #[inline]
    #[must_use]
    pub const fn below(self) -> Self {
        debug_assert!(self.0 > 0);
        Self(self.0 - 1)
    }

    /// The base-two logarithm of the bytes that one entry covers.
    #[inline]
    pub const fn shift(self) -> u32 {
        FRAME_SHIFT + 9 * self.0 as u32
    }

    /// The bytes that one entry covers.
    #[inline]
    pub(crate) const fn entry_bytes(self) -> u64 {
        1 << self.shift()
    }

    #[inline]
    pub(crate) const fn table_bytes(self) -> u64 {
        self.entry_bytes() * TABLE_ENTRIES as u64
    }

    /// The index of the entry that translates `addr` at this level.
    #[inline]
    pub const fn index(self, addr: VirtAddr) -> usize {
        (addr.0 >> self.shift()) as usize % TABLE_ENTRIES
    }

    /// The size of a leaf at this level, if it has leaves.
    #[inline]
    pub const fn leaf_size(self) -> Option<PageSize> {
        match self.0 {
            0 => Some(PageSize::Size4K),
            1 => Some(PageSize::Size2M),
            2 => Some(PageSize::Size1G),
            _ => None,
        }
    }

    /// The level whose leaves have this size.
    #[inline]
    pub(crate) const fn of_leaf(size: PageSize) -> Self {
        match size {
            PageSize::Size4K => Self::PTE,
            PageSize::Size2M => Self::PMD,
            PageSize::Size1G => Self::PUD,
        }
    }
}
