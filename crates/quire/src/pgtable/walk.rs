//! Finds entries: one, or all leaves of a range as runs.

use super::{FreshTable, PageTables};
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::platform::TablePlatform;
use crate::tlb::words::Table;

/// The entry at which the walk to an address ended: a leaf, or an empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The level of the table that the entry stands in.
    pub level: Level,
    /// The entry; empty where nothing is mapped.
    pub entry: Entry,
    /// Whether other address spaces may reach its table: no CPU stores through it, and a task that wants to
    /// change it calls [`PageTables::unshare`] first.
    pub shared: bool,
    /// The table that the entry stands in.
    table: Frame,
}

impl Lookup {
    /// The size of the leaf, if there is one.
    #[inline]
    pub fn leaf_size(&self) -> Option<PageSize> {
        if self.entry.is_leaf(self.level) { self.level.leaf_size() } else { None }
    }
}

/// Where a walk ended, in values that stay in registers.
#[derive(Clone, Copy)]
pub(crate) struct Walked {
    level: Level,
    entry: Entry,
    /// The entry that points to the table.
    above: Entry,
}

impl Walked {
    #[inline(always)]
    fn lookup(self) -> Lookup {
        let Self { level, entry, above } = self;
        Lookup { level, entry, shared: !above.has(EntryFlags::WRITE), table: above.frame() }
    }
}

/// Leaves of one size that map consecutive addresses to consecutive frames with the same bits, history apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafRun {
    /// The address of the first leaf, which for a large leaf may lie before the range.
    pub addr: VirtAddr,
    /// The first leaf.
    pub first: Entry,
    /// The size of each.
    pub size: PageSize,
    /// How many there are.
    pub count: u64,
    /// As [`Lookup::shared`].
    pub shared: bool,
}

/// The lowest table that a walk found for the start of a range, and the part of the range that it stands for.
pub(super) struct TableRange<'a> {
    pub(super) table: Table<'a>,
    /// For a lowest-level table the part of the range that it covers; above, the part that one entry covers.
    pub(super) range: VirtRange,
    /// As [`Lookup::shared`].
    pub(super) shared: bool,
}

impl TableRange<'_> {
    /// The entries of the lowest-level table that the range concerns, or the one entry above.
    #[inline]
    pub(super) fn indices(&self) -> core::ops::Range<usize> {
        let first = self.table.index(self.range.start);
        let count = self.range.len().div_ceil(self.table.level().entry_bytes()).max(1);
        first..first + count as usize
    }

    #[inline]
    pub(super) fn is_lowest(&self) -> bool {
        self.table.level() == Level::PTE
    }

    /// Whether another task is replacing the leaf of an entry, or has put a table in its place after the walk.
    #[inline]
    pub(super) fn is_changing(&self, entry: Entry) -> bool {
        entry.is_busy() || !self.is_lowest() && entry.is_table(self.table.level())
    }
}

impl<'a, 'p, P: TablePlatform> PageTables<'a, 'p, P> {
    /// The entry that decides about `addr` now, which is a user's or the end of all user addresses. Waits
    /// while a task replaces a leaf. Shared; takes no lock, so the answer may be old, and methods that change
    /// leaves check it again.
    pub fn lookup(&self, addr: VirtAddr) -> Lookup {
        debug_assert!(addr <= self.context.mode().user_range().end, "{addr:?} is the kernel's");
        self.walk(addr)
    }

    /// [`Self::lookup`], inlined into its caller.
    #[inline(always)]
    pub(super) fn walk(&self, addr: VirtAddr) -> Lookup {
        self.found(self.descend(addr), addr)
    }

    /// What a walk to an address found: the walk is repeated while a task replaces the leaf.
    #[inline(always)]
    pub(crate) fn found(&self, walked: Walked, addr: VirtAddr) -> Lookup {
        if walked.entry.is_busy() { self.wait_and_walk(addr) } else { walked.lookup() }
    }

    /// A walk to an address, as for [`Self::lookup`]; a task may be replacing the leaf.
    #[inline(always)]
    pub(crate) fn descend(&self, addr: VirtAddr) -> Walked {
        let (Ok(walked) | Err(walked)) = self.descend_to_page(addr);
        walked
    }

    /// A walk to the entry of a page; where it ends above, that is the error. Each level is written by itself:
    /// a loop computes a shift for each, and takes twice as many instructions.
    #[inline(always)]
    fn descend_to_page(&self, addr: VirtAddr) -> Result<Walked, Walked> {
        let at = |above: Entry, level: Level| {
            let table = Table::at(self.platform(), above.frame(), level);
            Walked { level, entry: table.load(level.index(addr)), above }
        };
        let below = |above: Entry, level: Level| {
            let walked = at(above, level);
            if walked.entry.is_table(level) { Ok(walked.entry) } else { Err(walked) }
        };
        let mut table = Entry::table(self.context.root());
        if self.context.mode().top() == Level::PGD {
            table = below(table, Level::PGD)?;
        }
        let table = below(below(table, Level::P4D)?, Level::PUD)?;
        Ok(at(below(table, Level::PMD)?, Level::PTE))
    }

    /// A loop and not a call of [`Self::walk`]: the wait may be long, and a kernel's stack is short.
    #[cold]
    #[inline(never)]
    fn wait_and_walk(&self, addr: VirtAddr) -> Lookup {
        loop {
            self.platform().relax();
            let walked = self.descend(addr);
            if !walked.entry.is_busy() {
                return walked.lookup();
            }
        }
    }

    /// The lowest-level table in which a walk ended at an empty entry, unless others reach it. The caller has
    /// held the address-space lock since, so the table is still there.
    #[inline(always)]
    pub(crate) fn table_with_room(&self, walked: Walked) -> Option<Table<'p>> {
        let ours =
            walked.level == Level::PTE && walked.entry.is_empty() && walked.above.has(EntryFlags::WRITE);
        ours.then(|| Table::at(self.platform(), walked.above.frame(), Level::PTE))
    }

    /// The lowest-level table that a lookup found, unless others reach it. The caller has held the
    /// address-space lock since, so the table is still there.
    #[inline]
    pub(super) fn table_of(&self, found: &Lookup) -> Option<Table<'p>> {
        let ours = found.level == Level::PTE && !found.shared;
        ours.then(|| Table::at(self.platform(), found.table, Level::PTE))
    }

    /// Whether nothing is mapped in a range that one lowest-level table covers. Shared; the answer may be
    /// old.
    #[inline]
    pub fn is_empty(&self, range: VirtRange) -> bool {
        let step = self.step(range);
        if step.is_lowest() {
            step.indices().all(|index| step.table.load(index).is_empty())
        } else {
            step.table.load(step.table.index(range.start)).is_empty()
        }
    }

    /// Shows every leaf in the range as runs, in ascending order; a run never spans two tables. Waits while a
    /// task replaces a leaf: the caller has no busy entry, in a gather or otherwise, when it calls this or
    /// returns from `show`. Shared; takes no lock, so each run is as it was at some moment of the walk.
    pub fn runs(&self, range: VirtRange, mut show: impl FnMut(LeafRun)) {
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            let level = step.table.level();
            let indices = step.indices();
            let mut index = indices.start;
            while index < indices.end {
                let first = step.table.load(index);
                if step.is_changing(first) {
                    rest.start = self.pause_at(&step, index);
                    break;
                }
                let mut count = 1;
                if let (true, Some(size)) = (first.is_leaf(level), level.leaf_size()) {
                    if step.is_lowest() {
                        count = step.table.run_length(index, indices.end, first);
                    }
                    let addr = step.part(index, index + 1).start;
                    show(LeafRun { addr, first, size, count: count as u64, shared: step.shared });
                }
                index += count;
            }
        }
    }

    /// Pauses before a walk looks again at an entry that [`TableRange::is_changing`]. Returns the address from
    /// which to walk. Under no lock but that of the address space.
    #[cold]
    pub(super) fn pause_at(&self, step: &TableRange<'_>, index: usize) -> VirtAddr {
        self.platform().relax();
        step.part(index, index + 1).start.max(step.range.start)
    }

    /// Whether any leaf in the range maps something else than a page of a file: anonymous memory, or the page of zeroes in its
    /// place. Shared; takes no lock, so the answer may be old.
    pub fn maps_private(&self, range: VirtRange) -> bool {
        let mut rest = range;
        while !rest.is_empty() {
            let step = self.step(rest);
            rest.start = step.range.end;
            let level = step.table.level();
            let is_private = |entry: Entry| {
                entry.is_leaf(level) && (entry.has(EntryFlags::ANON) || entry.has(EntryFlags::SPECIAL))
            };
            if step.indices().any(|index| is_private(step.table.load(index))) {
                return true;
            }
        }
        false
    }

    /// The [`TableRange`] for the start of a range, which is not empty.
    #[inline]
    pub(super) fn step(&self, range: VirtRange) -> TableRange<'p> {
        let mut table = self.root();
        let shared = loop {
            let entry = table.load(table.index(range.start));
            if entry.is_table(table.level()) {
                let shared = entry.is_shared_table(table.level());
                table = table.child(self.platform(), entry);
                if table.level() == Level::PTE {
                    break shared;
                }
            } else {
                let end = range.end.min(table.extent(range.start).end);
                return TableRange { table, range: VirtRange::new(range.start, end), shared: false };
            }
        };
        let covered = table.level().table_bytes();
        let end = range.end.min(range.start.align_down(covered).add(covered));
        TableRange { table, range: VirtRange::new(range.start, end), shared }
    }

    /// The table of `level` for `addr`; adds it, and those above it, where missing.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when a leaf, or a busy entry, is in the way, [`MapError::Shared`] when others
    /// reach the table, [`MapError::OutOfMemory`].
    #[inline]
    pub(super) fn ensure(&self, addr: VirtAddr, level: Level) -> Result<Table<'p>, MapError> {
        self.find(addr, level).map_or_else(|| self.ensure_slow(addr, level), Ok)
    }

    #[cold]
    #[inline(never)]
    fn ensure_slow(&self, addr: VirtAddr, level: Level) -> Result<Table<'p>, MapError> {
        let mut table = self.root();
        while table.level() > level {
            let entry = table.load(table.index(addr));
            table = if entry.is_shared_table(table.level()) {
                return Err(MapError::Shared);
            } else if entry.is_table(table.level()) {
                table.child(self.platform(), entry)
            } else if entry.is_empty() {
                self.add_table(table, table.index(addr))?
            } else {
                return Err(MapError::Occupied);
            };
        }
        Ok(table)
    }

    /// The table of `level` for `addr`, if there is one and no other address space reaches it.
    #[inline]
    pub(super) fn find(&self, addr: VirtAddr, level: Level) -> Option<Table<'p>> {
        let mut table = self.root();
        while table.level() > level {
            let entry = table.load(table.index(addr));
            if !entry.is_table(table.level()) || entry.is_shared_table(table.level()) {
                return None;
            }
            table = table.child(self.platform(), entry);
        }
        Some(table)
    }

    /// Whether a table of 2 MiB leaves, which the address space has alone, is on the way to the address.
    pub(crate) fn has_table_of_blocks(&self, addr: VirtAddr) -> bool {
        self.find(addr, Level::PMD).is_some()
    }

    fn add_table(&self, parent: Table<'p>, index: usize) -> Result<Table<'p>, MapError> {
        let fresh = FreshTable::new(self.allocator, parent.level().below())?;
        let locked = self.lock(parent);
        let entry = locked.load(index);
        if entry.is_empty() {
            return Ok(fresh.install(self.context, &locked, index));
        }
        drop(locked);
        if entry.is_shared_table(parent.level()) {
            Err(MapError::Shared)
        } else if entry.is_table(parent.level()) {
            Ok(parent.child(self.platform(), entry))
        } else {
            Err(MapError::Occupied)
        }
    }

    /// The table and index of the leaf of `size` for `addr`, if there is a table of that level.
    #[inline]
    pub(super) fn slot(&self, addr: VirtAddr, size: PageSize) -> Option<(Table<'p>, usize)> {
        let level = Level::of_leaf(size);
        let table = self.find(addr, level)?;
        Some((table, table.index(addr)))
    }
}
