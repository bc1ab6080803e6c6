//! Operations on page tables and their model, and the rights of a leaf.

use fastrand::Rng;
use quire::arch::{EntryFlags, Protection};

use crate::space::Prot;

pub(super) const CPUS: usize = 2;

/// The rights of a leaf, and the library's marks on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    pub(super) write: bool,
    pub(super) user: bool,
    pub(super) exec: bool,
    pub(super) soft_dirty: bool,
    pub(super) marked: bool,
}

/// An operation. Pages count from the middle of the window. The `Debug` form is Rust source under
/// `use oracle::pagetable::TableOp::*; use oracle::space::Prot::*;`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableOp {
    /// Map a fresh folio of this order by 4 KiB leaves.
    Map(i32, u8, Prot),
    /// Map a fresh folio of 2 MiB by one leaf.
    MapLarge(i32, Prot),
    /// Map the frame behind one page at another as well.
    Share(i32, i32, Prot),
    /// Unmap so many pages; with `true`, tables that become empty go as well.
    Unmap(i32, u32, bool),
    /// Give so many pages other rights, the right to store included.
    Protect(i32, u32, Prot),
    /// Clear the soft-dirty bits of so many pages.
    ClearSoftDirty(i32, u32),
    /// Set or clear the handler's mark of so many pages.
    Mark(i32, u32, bool),
    /// Split large leaves that cross the page's start.
    Split(i32),
    /// Store to the page, on a CPU.
    Store(u8, i32),
    /// Load from the page, on a CPU.
    Load(u8, i32),
}

/// The operations of a run: a few pages, or a few tables, on both sides of the middle.
pub fn draw_tables(rng: &mut Rng, count: usize) -> Vec<TableOp> {
    let span = *rng.choice(&[20, 200, 1200]).expect("not empty");
    let huge = rng.bool();
    let page = |rng: &mut Rng| match rng.u32(..3) {
        0 => rng.i32(-span..span),
        1 => rng.i32(-span..span) & !511,
        _ => rng.i32(-span / 8..span / 8 + 1),
    };
    let op = |rng: &mut Rng| {
        let prot = *rng.choice(&Prot::ALL).expect("not empty");
        let len = if rng.bool() { rng.u32(1..10) } else { rng.u32(1..span as u32) };
        match rng.u32(..28) {
            0..4 | 26.. => TableOp::Map(page(rng), rng.u8(..10), prot),
            4 if huge => TableOp::MapLarge(page(rng) & !511 | i32::from(rng.u32(..20) == 0), prot),
            4 | 5 => TableOp::Share(page(rng), page(rng), prot),
            6 | 7 => TableOp::Unmap(page(rng), len, rng.bool()),
            8 | 9 => TableOp::Protect(page(rng), len, prot),
            10 => TableOp::Split(page(rng)),
            11 => TableOp::ClearSoftDirty(page(rng), len),
            12 | 13 => TableOp::Mark(page(rng), len, rng.bool()),
            14..23 => TableOp::Store(rng.u8(..CPUS as u8), page(rng)),
            _ => TableOp::Load(rng.u8(..CPUS as u8), page(rng)),
        }
    };
    (0..count).map(|_| op(rng)).collect()
}

/// The hardware's rights for a protection: writable memory is readable.
pub(super) fn protection(prot: Prot) -> Protection {
    let library = crate::machine::convert::protection(prot);
    if prot.reads() { library.union(Protection::READ) } else { library }
}

/// The rights of a fresh leaf: a page that can be stored to without a fault counts as stored to.
pub(super) fn rights(prot: Prot) -> Rights {
    let write = prot.writes();
    Rights { write, user: prot.reads(), exec: prot.executes(), soft_dirty: write, marked: false }
}

pub(super) fn flags(prot: Prot) -> EntryFlags {
    let flags = EntryFlags::leaf(protection(prot));
    if prot.writes() { flags | EntryFlags::SOFT_DIRTY } else { flags }
}

impl Rights {
    /// The rights after `mprotect`: it does not add the right to store where a store must be noticed.
    pub(super) fn protected(self, prot: Prot) -> Self {
        let write = prot.writes() && (self.write || self.soft_dirty && !self.marked);
        Self { write, soft_dirty: self.soft_dirty, marked: self.marked, ..rights(prot) }
    }
}
