//! One entry of a page table: 64 bits, of which hardware writes two (accessed, dirty).
//!
//! Hardware ignores bits 9 to 11 and 52 to 58 of a present entry (SDM 3A, tables 4-14 to 4-20), so the
//! library uses them. In an entry that is not present, all others are the library's; zero means never used.
//!
//! A leaf without any access is not present for hardware, but one for the library ([`EntryFlags::INACCESSIBLE`]):
//! it keeps its frame, its counts and its history, and the kernel's own accesses fault like the program's.

use core::fmt;

use super::Level;
use crate::addr::{Frame, PageSize};
use crate::arch::protection::Protection;
use crate::flags::flag_set;

/// The bits of an entry, without its frame.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct EntryFlags(u64);

/// A copy of an entry at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(u64);

flag_set!(
    EntryFlags: PRESENT, WRITE, USER, ACCESSED, DIRTY, LARGE, INACCESSIBLE, SPECIAL, UFFD_WP, SOFT_DIRTY, ANON, LAZY_FREE, ZEROED,
    NO_EXECUTE
);

impl EntryFlags {
    /// The entry translates, for hardware.
    pub const PRESENT: Self = Self(1);
    /// Stores are allowed.
    pub const WRITE: Self = Self(1 << 1);
    /// User mode may use the entry; needed at every level.
    pub const USER: Self = Self(1 << 2);
    /// Hardware used the entry.
    pub const ACCESSED: Self = Self(1 << 5);
    /// Hardware stored through the leaf.
    pub const DIRTY: Self = Self(1 << 6);
    /// A leaf above the lowest level.
    pub const LARGE: Self = Self(1 << 7);
    /// Ours, in a leaf that hardware takes for not present: it maps its frame without any access. In a present
    /// leaf the bit would make it global, which no leaf of a program is.
    pub const INACCESSIBLE: Self = Self(1 << 8);
    /// Ours: the frame has no map count and no owner here (the zero frame).
    pub const SPECIAL: Self = Self(1 << 9);
    /// Ours: write-protected on behalf of a userfaultfd handler.
    pub const UFFD_WP: Self = Self(1 << 10);
    /// Ours: written since the mark was cleared.
    pub const SOFT_DIRTY: Self = Self(1 << 11);
    /// Ours: the frame is anonymous memory, not page cache.
    pub const ANON: Self = Self(1 << 52);
    /// Ours: the contents may be dropped as long as the dirty bit stays clear (`MADV_FREE`).
    pub const LAZY_FREE: Self = Self(1 << 53);
    /// Ours: all memory of a large anonymous leaf was zero when it was mapped, and still is if the dirty bit
    /// is clear. Code that clears the dirty bit clears this one.
    pub const ZEROED: Self = Self(1 << 54);
    /// Instruction fetches are not allowed.
    pub const NO_EXECUTE: Self = Self(1 << 63);

    /// Bits that hardware sets, or that only record history. Leaves that differ in nothing else are one run.
    pub(crate) const HISTORY: Self =
        Self(Self::ACCESSED.0 | Self::DIRTY.0 | Self::SOFT_DIRTY.0 | Self::ZEROED.0);

    /// The rights of a leaf. [`Self::NO_EXECUTE`] is inverted, as [`Self::loses`] knows.
    const RIGHTS: Self = Self(Self::WRITE.0 | Self::USER.0 | Self::NO_EXECUTE.0);
    /// The bits of a leaf that follow from its protection ([`Self::leaf`]).
    pub(crate) const PROTECTION: Self = Self(Self::RIGHTS.0 | Self::VALID.0);
    /// An entry with one of these maps memory or points to a table.
    const VALID: Self = Self(Self::PRESENT.0 | Self::INACCESSIBLE.0);
    /// A leaf of the kernel's own data, in which hardware has no bit left to set.
    #[cfg(feature = "published")]
    pub(crate) const KERNEL_DATA: Self =
        Self(Self::PRESENT.0 | Self::WRITE.0 | Self::ACCESSED.0 | Self::DIRTY.0 | Self::NO_EXECUTE.0);

    /// The raw bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether a leaf with these flags has a right that the flags `after` lack.
    #[inline]
    pub const fn loses(self, after: Self) -> bool {
        let (before, after) =
            (self.0 & Self::RIGHTS.0 ^ Self::NO_EXECUTE.0, after.0 & Self::RIGHTS.0 ^ Self::NO_EXECUTE.0);
        before & !after != 0
    }

    /// The bits of a leaf with this protection. A leaf without any access keeps its frame, but every access
    /// faults, also the kernel's.
    #[inline]
    pub const fn leaf(protection: Protection) -> Self {
        const LEAVES: [EntryFlags; 8] = EntryFlags::leaves();
        LEAVES[(protection.bits() & 7) as usize]
    }

    /// The bits of a leaf for each protection, by [`Protection::bits`].
    const fn leaves() -> [Self; 8] {
        let mut leaves = [Self::INACCESSIBLE.union(Self::NO_EXECUTE); 8];
        let mut bits = 1;
        while bits < 8 {
            let protection = Protection::from_bits(bits as u8);
            leaves[bits] = Self::PRESENT
                .union(Self::USER)
                .with_if(Self::WRITE, protection.contains(Protection::WRITE))
                .with_if(Self::NO_EXECUTE, !protection.contains(Protection::EXEC));
            bits += 1;
        }
        leaves
    }
}

impl Entry {
    /// Nothing was ever here.
    pub const EMPTY: Self = Self(0);
    /// Not present: a leaf was removed, and another entry follows after the flush. Only the task that marked
    /// the entry fills it. Others wait, holding no page-table lock and no busy entry.
    pub(crate) const BUSY: Self = Self(EntryFlags::SPECIAL.0);
    /// Not present until its address is unmapped: the contents are lost.
    pub(crate) const POISON: Self = Self(EntryFlags::SPECIAL.0 | 1 << 55);
    /// Bits 12 to 51: the frame's address.
    const FRAME_MASK: u64 = 0x000f_ffff_ffff_f000;

    /// Converts from the raw bits in memory.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The raw bits in memory.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A leaf of `size` at `frame`.
    #[inline]
    pub const fn leaf(frame: Frame, size: PageSize, flags: EntryFlags) -> Self {
        let large = match size {
            PageSize::Size4K => EntryFlags::NONE,
            PageSize::Size2M | PageSize::Size1G => EntryFlags::LARGE,
        };
        Self(frame.addr().0 | flags.0 | large.0)
    }

    /// A pointer to the table below. Only leaves restrict rights.
    #[inline]
    pub const fn table(frame: Frame) -> Self {
        Self(frame.addr().0 | EntryFlags::PRESENT.0 | EntryFlags::WRITE.0 | EntryFlags::USER.0)
    }

    /// A pointer to a table that other address spaces reach, or reached: it forbids stores below.
    #[inline]
    pub(crate) const fn shared_table(frame: Frame) -> Self {
        Self::table(frame).without(EntryFlags::WRITE)
    }

    /// Whether nothing was ever here.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn is_busy(self) -> bool {
        self.0 == Self::BUSY.0
    }

    /// Whether the contents of the address are lost.
    #[inline]
    pub(crate) const fn is_poison(self) -> bool {
        self.0 == Self::POISON.0
    }

    /// Whether a large leaf maps memory known to be zero: zero when mapped, and not stored through since.
    #[inline]
    pub(crate) const fn is_zeroed(self) -> bool {
        self.has(EntryFlags::ZEROED) && !self.has(EntryFlags::DIRTY)
    }

    /// Whether this leaf holds every bit that hardware could set in it: accessed, and dirty or not writable.
    /// Hardware has no reason to write such an entry, so the holder of its table's lock may replace it by a
    /// plain store and lose nothing (invariant 3). This requires that an earlier removal of the right to
    /// store is flushed: some processors set the dirty bit in an entry that lost the right meanwhile.
    #[inline]
    pub const fn is_settled(self) -> bool {
        self.has(EntryFlags::ACCESSED) && (self.has(EntryFlags::DIRTY) || !self.has(EntryFlags::WRITE))
    }

    /// Whether the entry maps memory or points to a table. Hardware faults at a leaf that is
    /// [`EntryFlags::INACCESSIBLE`], which is present for the library.
    #[inline]
    pub(crate) const fn is_present(self) -> bool {
        self.0 & EntryFlags::VALID.0 != 0
    }

    /// Whether the entry, read at `level`, maps memory rather than pointing to a table.
    #[inline]
    pub(crate) const fn is_leaf(self, level: Level) -> bool {
        self.is_present() && (level.get() == 0 || self.0 & EntryFlags::LARGE.0 != 0)
    }

    /// Whether the entry, read at `level`, points to a table.
    #[inline]
    pub(crate) const fn is_table(self, level: Level) -> bool {
        // A pointer to a table is never inaccessible.
        level.get() != 0 && self.0 & (EntryFlags::PRESENT.0 | EntryFlags::LARGE.0) == EntryFlags::PRESENT.0
    }

    /// Whether the entry, read at `level`, points to a table that may be shared ([`Self::shared_table`]).
    #[inline]
    pub(crate) const fn is_shared_table(self, level: Level) -> bool {
        self.is_table(level) && !self.has(EntryFlags::WRITE)
    }

    /// The frame that the entry names.
    #[inline]
    pub const fn frame(self) -> Frame {
        Frame((self.0 & Self::FRAME_MASK) >> 12)
    }

    /// All bits except the frame.
    #[inline]
    pub const fn flags(self) -> EntryFlags {
        EntryFlags(self.0 & !Self::FRAME_MASK)
    }

    /// Whether every given bit is set.
    #[inline]
    pub const fn has(self, flags: EntryFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The entry with more bits set.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: EntryFlags) -> Self {
        Self(self.0 | flags.0)
    }

    /// The entry with bits cleared.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: EntryFlags) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Whether `self` is the leaf `distance` 4 KiB leaves after `first` in one run: consecutive frames and
    /// the same bits, except those that only record history.
    #[inline]
    pub const fn continues(self, first: Self, distance: u64) -> bool {
        let expected = Self(first.0 + (distance << 12));
        expected.differs_from(self) == 0
    }

    /// The 4 KiB leaf that follows this one in a run.
    #[inline]
    #[must_use]
    pub(crate) const fn next_in_run(self) -> Self {
        Self(self.0 + (1 << 12))
    }

    /// The 4 KiB leaf `distance` leaves after this one in a run.
    #[inline]
    #[must_use]
    pub(crate) const fn in_run(self, distance: u64) -> Self {
        Self(self.0 + (distance << 12))
    }

    /// Whether a leaf allows instruction fetches.
    #[inline]
    pub(crate) const fn allows_fetch(self) -> bool {
        !self.has(EntryFlags::NO_EXECUTE)
    }

    /// Zero if both are the same translation, that is, differ only in bits that record history.
    #[inline]
    pub(crate) const fn differs_from(self, other: Self) -> u64 {
        (self.0 ^ other.0) & !EntryFlags::HISTORY.0
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:?} {:?})", self.frame(), self.flags())
    }
}
