//! x86-64 page tables as the hardware reads them: Intel SDM volume 3A, sections 4.5 to 4.7.
//!
//! Deliberately separate from the library's own encodings, so that an error in one of the two shows.

/// Bit 0: the entry is present.
pub(super) const PRESENT: u64 = 0x1;
/// Bit 1: stores are allowed.
const WRITABLE: u64 = 0x2;
/// Bit 2: user mode is allowed.
const USER: u64 = 0x4;
/// Bit 5: set by hardware when the entry is used.
pub(super) const ACCESSED: u64 = 0x20;
/// Bit 6: set by hardware when a leaf is stored through.
pub(super) const DIRTY: u64 = 0x40;
/// Bit 7: at levels 2 and 3 a leaf; reserved at levels 4 and 5; part of the memory type at level 1.
const PAGE_SIZE: u64 = 0x80;
/// Bit 8, which hardware ignores in an entry that is not present: the library keeps the entry's leaf.
pub(super) const KEPT: u64 = 0x100;
/// Bit 63: instruction fetches are refused.
const EXECUTE_DISABLE: u64 = 1 << 63;
/// Bits 12 to 51 hold an address.
const ADDRESS: u64 = ((1 << 52) - 1) & !0xfff;

/// Entries in a table.
pub(super) const ENTRIES: u64 = 512;

/// The rights that all entries of a walk grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub(crate) write: bool,
    pub(crate) user: bool,
    pub(crate) execute: bool,
}

impl Rights {
    pub(crate) const ALL: Self = Self { write: true, user: true, execute: true };

    /// A right holds only if every level grants it.
    pub(super) fn narrowed_by(self, entry: u64) -> Self {
        Self {
            write: self.write && entry & WRITABLE != 0,
            user: self.user && entry & USER != 0,
            execute: self.execute && entry & EXECUTE_DISABLE == 0,
        }
    }
}

/// The kind of a present entry at its level (1 is the lowest, whose entries are 4 KiB leaves).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It points to the table at this frame.
    Table(u64),
    /// It maps from this frame on.
    Leaf(u64),
    /// A bit is set that must be zero.
    Reserved,
}

/// The base-two logarithm of the bytes that an entry of `level` covers.
pub(crate) const fn shift(level: u32) -> u32 {
    3 + 9 * level
}

/// Which entry of a table of `level` translates `address`.
pub(super) const fn index(address: u64, level: u32) -> u64 {
    (address >> shift(level)) % ENTRIES
}

/// Reads a present entry of `level`.
pub(super) const fn decode(entry: u64, level: u32) -> Kind {
    let frame = (entry & ADDRESS) >> 12;
    let large = entry & PAGE_SIZE != 0;
    match level {
        1 => Kind::Leaf(frame),
        2 | 3 if large => {
            // Bit 12 is part of the memory type; the address bits between it and the leaf's own size must be zero.
            let below = ((1 << shift(level)) - 1) & ADDRESS & !0x1000;
            if entry & below == 0 { Kind::Leaf(frame & !1) } else { Kind::Reserved }
        }
        2 | 3 => Kind::Table(frame),
        _ if large => Kind::Reserved,
        _ => Kind::Table(frame),
    }
}

/// Whether `address` is canonical: all bits above the highest translated one equal it.
pub(super) const fn is_canonical(address: u64, levels: u32) -> bool {
    let unused = 64 - (12 + 9 * levels);
    (address << unused) as i64 >> unused == address as i64
}

/// How many frames a leaf at `level` maps.
pub(crate) const fn leaf_frames(level: u32) -> u64 {
    1 << (shift(level) - 12)
}

#[cfg(test)]
mod tests;
