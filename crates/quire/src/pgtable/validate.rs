//! Walks all tables of an address space at rest and checks them against the invariants.

use core::sync::atomic::Ordering;

use super::{PageTables, place_of};
use crate::addr::{Frame, VirtAddr};
use crate::arch::{Entry, EntryFlags, Level};
use crate::limits::TABLE_ENTRIES;
use crate::memmap::DescriptorFlags;
use crate::platform::TablePlatform;
use crate::tlb::words::{Table, USER_ENTRIES};
use crate::tlb::{RssChange, resident};

/// A broken invariant that [`PageTables::validate`] found, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableViolation {
    /// The frame is not marked as a table of this address space and level.
    NotATable(Frame),
    /// The entry that leads to the table is not its noted place: two entries do, or a move noted none.
    Place(Frame),
    /// A shared table is below an entry that allows stores, names an owner, or miscounts what it maps.
    Shared(Frame),
    /// The table counts another number of non-empty entries than it has.
    Population {
        /// The table.
        table: Frame,
        /// What it counts.
        counted: u16,
        /// What it has.
        found: u16,
    },
    /// The entries contradict the table's grain.
    Grain(Frame),
    /// The entry is no entry that its level may have, or it is marked for a handler and allows stores.
    Strange {
        /// The address that it translates.
        addr: VirtAddr,
        /// The entry.
        entry: Entry,
    },
    /// The leaf maps a frame that has no map count (invariant 5).
    Uncounted {
        /// The address that it translates.
        addr: VirtAddr,
        /// The frame.
        frame: Frame,
    },
    /// An entry of the root's upper half is not the kernel's: the kernel changed its own after the address
    /// space was created ([`TablePlatform::kernel_root`], invariant W5).
    KernelHalf {
        /// The entry's index, from 256 on.
        index: usize,
        /// The entry of the root.
        entry: Entry,
    },
    /// The address space counts another number of tables than can be reached.
    Tables {
        /// What it counts.
        counted: u64,
        /// What was found.
        found: u64,
    },
}

/// The contents of a whole address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCensus {
    /// Tables, the root included.
    pub tables: u64,
    /// Leaves of every size.
    pub leaves: u64,
    /// Resident memory.
    pub resident: RssChange,
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Checks every table and leaf, and counts them. No task may change the address space meanwhile.
    ///
    /// # Errors
    /// The first [`TableViolation`] found.
    pub fn validate(&self) -> Result<TableCensus, TableViolation> {
        let mut census = TableCensus::default();
        self.validate_own(self.root(), VirtAddr(0), &mut census)?;
        self.validate_kernel_half()?;
        let counted = self.context.tables();
        if counted != census.tables {
            return Err(TableViolation::Tables { counted, found: census.tables });
        }
        Ok(census)
    }

    /// A table that this address space alone reaches.
    fn validate_own(
        &self,
        table: Table<'p>,
        base: VirtAddr,
        census: &mut TableCensus,
    ) -> Result<(), TableViolation> {
        let descriptor = self.allocator.frames().descriptor(table.frame());
        if descriptor.owner.load(Ordering::Relaxed) != self.context.root().0 {
            return Err(TableViolation::NotATable(table.frame()));
        }
        if descriptor.sharers().load(Ordering::Relaxed) != 0 {
            return Err(TableViolation::Shared(table.frame()));
        }
        self.validate_table(table, base, census)
    }

    /// A table that others may reach. It has no place, and [`resident`] must count what it maps.
    fn validate_shared(
        &self,
        table: Table<'p>,
        base: VirtAddr,
        census: &mut TableCensus,
    ) -> Result<(), TableViolation> {
        let descriptor = self.allocator.frames().descriptor(table.frame());
        let before = census.resident;
        self.validate_table(table, base, census)?;
        let found = resident(table, descriptor);
        let counts = before.anon + found.anon == census.resident.anon
            && before.file + found.file == census.resident.file;
        let placed =
            [&descriptor.owner, &descriptor.word].iter().any(|field| field.load(Ordering::Relaxed) != 0);
        if placed || !counts { Err(TableViolation::Shared(table.frame())) } else { Ok(()) }
    }

    fn validate_table(
        &self,
        table: Table<'p>,
        base: VirtAddr,
        census: &mut TableCensus,
    ) -> Result<(), TableViolation> {
        let descriptor = self.allocator.frames().descriptor(table.frame());
        if !descriptor.has(DescriptorFlags::TABLE)
            || descriptor.level.load(Ordering::Relaxed) != table.level().get()
        {
            return Err(TableViolation::NotATable(table.frame()));
        }
        census.tables += 1;
        let mut found = 0;
        for index in 0..self.context.entries_of(table.frame()) {
            let entry = table.load(index);
            let addr = base.add(index as u64 * table.level().entry_bytes());
            found += u16::from(!entry.is_empty());
            if entry.is_leaf(table.level()) {
                self.validate_leaf(table.level(), addr, entry, census)?;
            } else if entry.is_shared_table(table.level()) {
                self.validate_shared(table.child(self.platform(), entry), addr, census)?;
            } else if entry.is_table(table.level()) {
                let child = table.child(self.platform(), entry);
                let place = self.allocator.frames().descriptor(child.frame()).word.load(Ordering::Relaxed);
                if place != place_of(table.frame(), index) {
                    return Err(TableViolation::Place(child.frame()));
                }
                self.validate_own(child, addr, census)?;
            } else if entry.is_poison() && table.level().leaf_size().is_some() {
                if table.level() == Level::PTE && !descriptor.has(DescriptorFlags::MIXED) {
                    return Err(TableViolation::Strange { addr, entry });
                }
            } else if !entry.is_empty() {
                return Err(TableViolation::Strange { addr, entry });
            }
        }
        if table.level() == Level::PTE && !has_grain(table, 1 << descriptor.grain()) {
            return Err(TableViolation::Grain(table.frame()));
        }
        let counted = descriptor.population.load(Ordering::Relaxed);
        if counted == found {
            Ok(())
        } else {
            Err(TableViolation::Population { table: table.frame(), counted, found })
        }
    }

    /// Compares the root's upper half, which the census leaves out, with the kernel's.
    fn validate_kernel_half(&self) -> Result<(), TableViolation> {
        let Some(kernel) = self.platform().kernel_root() else { return Ok(()) };
        let (root, kernel) = (self.root(), Table::at(self.platform(), kernel, self.root().level()));
        match (USER_ENTRIES..TABLE_ENTRIES).find(|&at| root.load(at).differs_from(kernel.load(at)) != 0) {
            Some(index) => Err(TableViolation::KernelHalf { index, entry: root.load(index) }),
            None => Ok(()),
        }
    }

    fn validate_leaf(
        &self,
        level: Level,
        addr: VirtAddr,
        entry: Entry,
        census: &mut TableCensus,
    ) -> Result<(), TableViolation> {
        let Some(size) = level.leaf_size() else { return Err(TableViolation::Strange { addr, entry }) };
        census.leaves += 1;
        census.resident.count(entry, size, 1);
        let present = entry.has(EntryFlags::PRESENT);
        let accessible = entry.has(EntryFlags::USER) && !entry.has(EntryFlags::INACCESSIBLE);
        if present != accessible || entry.has(EntryFlags::WRITE | EntryFlags::UFFD_WP) {
            return Err(TableViolation::Strange { addr, entry });
        }
        if !entry.has(EntryFlags::SPECIAL) && self.allocator.counts().mapcount(entry.frame()) == 0 {
            return Err(TableViolation::Uncounted { addr, frame: entry.frame() });
        }
        Ok(())
    }
}

/// Whether each aligned group of `grain` entries is empty, or maps consecutive frames of one kind.
fn has_grain(table: Table<'_>, grain: usize) -> bool {
    let kind = EntryFlags::ANON | EntryFlags::SPECIAL;
    (0..TABLE_ENTRIES).all(|index| {
        let (entry, first) = (table.load(index), table.load(index & !(grain - 1)));
        let step = if first.is_empty() { 0 } else { (index & (grain - 1)) as u64 };
        entry.is_present() == first.is_present()
            && entry.flags().intersection(kind) == first.flags().intersection(kind)
            && entry.frame() == first.frame().add(step)
    })
}
