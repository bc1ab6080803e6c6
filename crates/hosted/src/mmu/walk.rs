//! The page-table walker, for accesses that no TLB entry serves.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use quire::addr::Frame;

use super::fault::{Access, FaultCause, PageFault};
use super::layout::{self, ACCESSED, DIRTY, KEPT, Kind, PRESENT, Rights, leaf_frames};
use crate::machine::Hosted;
use crate::tlb::{CpuTlb, Leaf, Table};
use crate::violation::Violation;

/// A step of a walk: about to read a table of `level` for `address`.
struct Step {
    address: u64,
    access: Access,
    level: u32,
    table: Table,
}

/// The meaning of one entry.
enum Next {
    Table(Table),
    Leaf(Leaf),
}

impl Hosted {
    /// Levels of page tables that the software MMU walks.
    pub(super) fn levels(&self) -> u32 {
        if self.config.five_level { 5 } else { 4 }
    }

    /// Walks the tables of the loaded root from the deepest cached pointer on, sets accessed and dirty bits as hardware
    /// does, and fills the modelled caches.
    pub(super) fn walk(&self, tlb: &mut CpuTlb, address: u64, access: Access) -> Result<Leaf, PageFault> {
        if !layout::is_canonical(address, self.levels()) {
            return Err(access.fault(address, FaultCause::NonCanonical));
        }
        let root = tlb.root().ok_or(access.fault(address, FaultCause::NotPresent))?;
        let (mut level, mut table) = tlb
            .deepest_table(address)
            .unwrap_or((self.levels(), Table { frame: root.0, rights: Rights::ALL }));
        loop {
            match self.step(&Step { address, access, level, table })? {
                Next::Leaf(leaf) => {
                    if self.config.tlb_model {
                        tlb.fill_leaf(&self.tlbs.reach, address, leaf);
                    }
                    return Ok(leaf);
                }
                Next::Table(below) => {
                    level -= 1;
                    table = below;
                    if self.config.tlb_model {
                        tlb.fill_table(&self.tlbs.reach, address, level, below);
                    }
                }
            }
        }
    }

    fn step(&self, step: &Step) -> Result<Next, PageFault> {
        let index = layout::index(step.address, step.level);
        let slot = self.arena.table_entry(step.table.frame, index);
        // A table outside memory was refused when the pointer to it was read; only a root can still be wrong here.
        let slot = slot.ok_or_else(|| self.outside(step, step.table.frame << 12))?;
        let mut entry = slot.load(Ordering::Acquire);
        loop {
            if entry & PRESENT == 0 {
                return Err(step.access.fault(step.address, FaultCause::NotPresent));
            }
            let rights = step.table.rights.narrowed_by(entry);
            let (next, history) = match layout::decode(entry, step.level) {
                Kind::Reserved => return Err(self.reserved(step, entry)),
                Kind::Table(frame) if self.arena.contains_frames(frame, 1) => {
                    (Next::Table(Table { frame, rights }), ACCESSED)
                }
                Kind::Leaf(frame) if self.arena.contains_frames(frame, leaf_frames(step.level)) => {
                    if !allows(rights, step.access) {
                        return Err(step.access.fault(step.address, FaultCause::Protection));
                    }
                    let history = if step.access.writes() { ACCESSED | DIRTY } else { ACCESSED };
                    let dirty = (entry | history) & DIRTY != 0;
                    (Next::Leaf(Leaf { frame, level: step.level, rights, dirty }), history)
                }
                Kind::Table(_) | Kind::Leaf(_) => return Err(self.outside(step, entry)),
            };
            match mark(slot, entry, history) {
                Ok(()) => return Ok(next),
                // The entry changed during the walk: read it again, as hardware does.
                Err(now) => entry = now,
            }
        }
    }

    fn reserved(&self, step: &Step, entry: u64) -> PageFault {
        let cpu = self.this_cpu();
        self.violated(Violation::ReservedBits { cpu, addr: step.address, level: step.level, entry });
        step.access.fault(step.address, FaultCause::Reserved)
    }

    fn outside(&self, step: &Step, entry: u64) -> PageFault {
        let cpu = self.this_cpu();
        self.violated(Violation::OutsideMemory { cpu, addr: step.address, level: step.level, entry });
        step.access.fault(step.address, FaultCause::Reserved)
    }

    /// Reads the translation of `addr` under `root` without changing anything: no accessed or dirty bit, no
    /// cache.
    pub fn probe(&self, root: Frame, addr: quire::addr::VirtAddr) -> Option<Translation> {
        let mut table = Table { frame: root.0, rights: Rights::ALL };
        let mut level = self.levels();
        loop {
            let slot = self.arena.table_entry(table.frame, layout::index(addr.0, level))?;
            let entry = slot.load(Ordering::Acquire);
            if entry & (PRESENT | KEPT) == 0 {
                return None;
            }
            let rights = table.rights.narrowed_by(entry);
            match layout::decode(entry, level) {
                Kind::Table(frame) => (table, level) = (Table { frame, rights }, level - 1),
                Kind::Leaf(frame) => {
                    let table = Table { rights, ..table };
                    return Some(Translation::new(addr.0, level, frame, table, entry));
                }
                Kind::Reserved => return None,
            }
        }
    }

    /// How many entries of the table at `root` belong to it alone: the upper half of an address space's root
    /// is the kernel's, if there is one.
    fn own_entries(&self, root: Frame) -> u64 {
        let kernel = self.tlbs.kernel_root();
        if kernel.is_none_or(|kernel| kernel == root) { layout::ENTRIES } else { layout::ENTRIES / 2 }
    }

    /// Every leaf under `root`, in ascending order of address: an independent reading of a whole page table,
    /// without the kernel's half. Leaves that hardware does not use, but the library keeps, are among them:
    /// [`Translation::present`] is false.
    pub fn leaves(&self, root: Frame) -> Vec<Translation> {
        let mut found = Vec::new();
        let top = Table { frame: root.0, rights: Rights::ALL };
        self.gather_leaves(top, self.levels(), 0..self.own_entries(root), 0, &mut found);
        found
    }

    /// The frames of all tables under `root`, itself included, level by level, without the kernel's half.
    pub fn tables(&self, root: Frame) -> Vec<Frame> {
        let (mut found, mut first) = (vec![root], 0);
        for level in (2..=self.levels()).rev() {
            let last = found.len();
            for at in first..last {
                let own = if at == 0 { self.own_entries(root) } else { layout::ENTRIES };
                let slots = (0..own).filter_map(|index| self.arena.table_entry(found[at].0, index));
                let entries =
                    slots.map(|slot| slot.load(Ordering::Acquire)).filter(|entry| entry & PRESENT != 0);
                let below = entries.filter_map(|entry| match layout::decode(entry, level) {
                    Kind::Table(frame) => Some(Frame(frame)),
                    Kind::Leaf(_) | Kind::Reserved => None,
                });
                let below = below.collect::<Vec<_>>();
                found.extend(below);
            }
            first = last;
        }
        found
    }

    fn gather_leaves(
        &self,
        table: Table,
        level: u32,
        entries: Range<u64>,
        base: u64,
        found: &mut Vec<Translation>,
    ) {
        for index in entries {
            let Some(slot) = self.arena.table_entry(table.frame, index) else { return };
            let entry = slot.load(Ordering::Acquire);
            if entry & (PRESENT | KEPT) == 0 {
                continue;
            }
            let rights = table.rights.narrowed_by(entry);
            let unused = 64 - layout::shift(self.levels() + 1);
            let addr = ((base + (index << layout::shift(level))) << unused) as i64 >> unused;
            match layout::decode(entry, level) {
                Kind::Table(frame) => {
                    let below = Table { frame, rights };
                    self.gather_leaves(below, level - 1, 0..layout::ENTRIES, addr as u64, found);
                }
                Kind::Leaf(frame) => {
                    let table = Table { rights, ..table };
                    found.push(Translation::new(addr as u64, level, frame, table, entry));
                }
                Kind::Reserved => {}
            }
        }
    }
}

/// A leaf of a page table, with the rights of its walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The first address that the leaf maps.
    pub addr: quire::addr::VirtAddr,
    /// The leaf's first frame.
    pub frame: Frame,
    /// How many frames it maps: 1, 512 or 262144.
    pub frames: u64,
    /// Hardware uses the leaf. If not, the library keeps it for memory without any access.
    pub present: bool,
    /// Stores are allowed by all levels.
    pub write: bool,
    /// User mode is allowed by all levels.
    pub user: bool,
    /// Instruction fetches are allowed by all levels.
    pub exec: bool,
    /// The leaf's accessed bit.
    pub accessed: bool,
    /// The leaf's dirty bit.
    pub dirty: bool,
    /// The leaf's bits in memory.
    pub entry: u64,
    /// The leaf's table, which several address spaces may reach.
    pub table: Frame,
}

impl Translation {
    /// A leaf in `table`, whose rights are those of the whole walk.
    fn new(addr: u64, level: u32, frame: u64, table: Table, entry: u64) -> Self {
        let rights = table.rights;
        Self {
            addr: quire::addr::VirtAddr(addr & !((1 << layout::shift(level)) - 1)),
            frame: Frame(frame),
            frames: leaf_frames(level),
            present: entry & PRESENT != 0,
            write: rights.write,
            user: rights.user,
            exec: rights.execute,
            accessed: entry & ACCESSED != 0,
            dirty: entry & DIRTY != 0,
            entry,
            table: Frame(table.frame),
        }
    }
}

pub(super) fn allows(rights: Rights, access: Access) -> bool {
    match access {
        Access::Read => rights.user,
        Access::Write => rights.user && rights.write,
        Access::Fetch => rights.user && rights.execute,
        Access::KernelRead => true,
        Access::KernelWrite => rights.write,
    }
}

/// Sets bits in an entry unless they are set; returns the entry if it is no longer `seen`.
fn mark(slot: &AtomicU64, seen: u64, history: u64) -> Result<(), u64> {
    if seen & history == history {
        return Ok(());
    }
    slot.compare_exchange(seen, seen | history, Ordering::AcqRel, Ordering::Acquire).map(drop)
}
