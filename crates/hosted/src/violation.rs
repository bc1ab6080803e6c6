//! Rules that the memory manager broke.

use std::sync::{Mutex, PoisonError};

use quire::addr::{Frame, FrameRange};
use quire::cpu::CpuId;

use crate::task::hold;

/// A rule that the memory manager broke. Levels count from 1, whose entries are 4 KiB leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A frame was freed that a cached translation still reaches.
    #[error(
        "{freed:?} were freed, but {cpu:?} still translates {addr:#x} (+{size:#x}, root {root:?}) to {first:?}"
    )]
    FreedFrame {
        /// Whose TLB.
        cpu: CpuId,
        /// The page table that it runs on.
        root: Frame,
        /// The first address of the translation.
        addr: u64,
        /// Its extent in bytes.
        size: u64,
        /// Its first frame.
        first: Frame,
        /// What was freed.
        freed: FrameRange,
    },
    /// A page-table page was freed that a paging-structure cache still reaches.
    #[error(
        "page-table page {table:?} was freed, but {cpu:?} caches it as the level {level} table of {addr:#x} (root {root:?})"
    )]
    FreedTable {
        /// Whose cache.
        cpu: CpuId,
        /// The page table that it runs on.
        root: Frame,
        /// The first address that the table translates.
        addr: u64,
        /// The table's level.
        level: u32,
        /// The table.
        table: Frame,
    },
    /// A root table was freed while a CPU runs on it.
    #[error("root table {root:?} was freed, but {cpu:?} runs on it")]
    FreedRoot {
        /// Which CPU.
        cpu: CpuId,
        /// The table.
        root: Frame,
    },
    /// A cached translation allows more than the page table, and no flush that would drop it is under way.
    #[error(
        "{cpu:?} still translates {addr:#x} (+{size:#x}, root {root:?}, stores: {write}) to {first:?}, where the page table has {there:?}, and every verb has returned"
    )]
    StaleTranslation {
        /// Whose TLB.
        cpu: CpuId,
        /// The page table that it runs on.
        root: Frame,
        /// The first address of the translation.
        addr: u64,
        /// Its extent in bytes.
        size: u64,
        /// Its first frame.
        first: Frame,
        /// Whether stores go through it.
        write: bool,
        /// The frame that the page table has, at the first page that differs: in its frame, or in what it allows.
        there: Option<Frame>,
    },
    /// A paging-structure cache leads to a table that was removed, or allows more than the walk to it does,
    /// and no flush that would drop it is under way.
    #[error(
        "{cpu:?} caches {table:?} as the level {level} table of {addr:#x} (root {root:?}), where the page table has {there:?}, and every verb has returned"
    )]
    StaleTable {
        /// Whose cache.
        cpu: CpuId,
        /// The page table that it runs on.
        root: Frame,
        /// The first address that the table translates.
        addr: u64,
        /// The table's level.
        level: u32,
        /// The table.
        table: Frame,
        /// What the page table leads to.
        there: Option<Frame>,
    },
    /// A store went through a translation cached with the dirty bit set, where the bit was cleared and no
    /// flush is under way: the store is not recorded.
    #[error(
        "{cpu:?} stored to {addr:#x} (root {root:?}) and the dirty bit stayed clear: its entry was cached with it set"
    )]
    UnrecordedStore {
        /// Which CPU.
        cpu: CpuId,
        /// The page table that it runs on.
        root: Frame,
        /// The address that was stored to.
        addr: u64,
    },
    /// A frame was freed that a secondary MMU's copy still reaches.
    #[error(
        "{freed:?} were freed, but a secondary MMU still takes {addr:#x} (+{size:#x}, root {root:?}) to {first:?}"
    )]
    FreedNested {
        /// The page table that was copied.
        root: Frame,
        /// The first address that the copy speaks for, in the address space.
        addr: u64,
        /// Its extent in bytes.
        size: u64,
        /// Its first frame.
        first: Frame,
        /// What was freed.
        freed: FrameRange,
    },
    /// A secondary MMU has a copy that differs from the page table, outside every bracket.
    #[error(
        "a secondary MMU takes {addr:#x} (+{size:#x}, root {root:?}, stores: {write}) to {first:?}, where the page table has {there:?}"
    )]
    StaleNested {
        /// The page table that was copied.
        root: Frame,
        /// The first address that the copy speaks for, in the address space.
        addr: u64,
        /// Its extent in bytes.
        size: u64,
        /// Its first frame.
        first: Frame,
        /// Whether stores go through it.
        write: bool,
        /// The frame that the page table has, at the first page that differs: in its frame, or in what it allows.
        there: Option<Frame>,
    },
    /// A walk met an entry with a bit set that must be zero.
    #[error("{cpu:?} met reserved bits in {entry:#x} at level {level}, walking {addr:#x}")]
    ReservedBits {
        /// Which CPU.
        cpu: CpuId,
        /// The address that was to be translated.
        addr: u64,
        /// The entry's level.
        level: u32,
        /// The entry.
        entry: u64,
    },
    /// A walk met an entry that names frames outside the machine's memory.
    #[error("{cpu:?} met an entry that names no memory, {entry:#x} at level {level}, walking {addr:#x}")]
    OutsideMemory {
        /// Which CPU.
        cpu: CpuId,
        /// The address that was to be translated.
        addr: u64,
        /// The entry's level.
        level: u32,
        /// The entry; for a root table, its address.
        entry: u64,
    },
}

/// A machine's violations, and their number.
#[derive(Default)]
pub(crate) struct Violations {
    kept: Mutex<(Vec<Violation>, u64)>,
}

impl Violations {
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut Vec<Violation>, &mut u64) -> R) -> R {
        let _held = hold();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (list, count) = &mut *kept;
        action(list, count)
    }
}
