//! Unmapping: whole tables by one exchange, the rest run by run.

use super::PageTables;
use super::lock::LockedTable;
use super::walk::TableRange;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::{FRAME_SIZE, TABLE_ENTRIES};
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::Table;
use crate::tlb::{MmuGather, RssChange, Unmapped, UnmappedPage, ZapStrategy, flush_page, recorded};

/// The range to unmap, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zap {
    /// The addresses whose leaves to unmap.
    pub range: VirtRange,
    /// The range and the hole around it: from the end of the mapping before to the start of the one after.
    pub limits: VirtRange,
    /// Whether tables that lie wholly inside the limits are detached. If so, the caller holds the
    /// address-space lock *exclusive*; else *shared* suffices.
    pub detach: bool,
}

impl Zap {
    /// Unmaps leaves and keeps every table; for a caller that holds the address-space lock shared.
    pub const fn leaves(range: VirtRange) -> Self {
        Self { range, limits: range, detach: false }
    }

    /// Unmaps leaves and detaches tables; for a caller that holds the address-space lock exclusive.
    pub const fn tables(range: VirtRange, limits: VirtRange) -> Self {
        Self { range, limits, detach: true }
    }
}

/// What is known of a range whose ends were cut: no large leaf and no shared table reaches over them. Holds as
/// long as the caller keeps the address-space lock, which it holds for writing; the table, as long as it holds
/// that at all.
#[derive(Clone, Copy)]
pub(crate) struct RangeEnds<'t> {
    /// The table of 4 KiB leaves that alone maps the whole range, if it does and no other address space
    /// reaches it.
    only: Option<Table<'t>>,
}

/// What one walk of the range unmaps.
#[derive(Clone, Copy)]
struct Pass {
    leaves: bool,
    tables: bool,
}

/// Why a caller gave back a table's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// It has seen every entry.
    Done,
    /// The gather has no room.
    Full,
    /// Another task is replacing the next leaf.
    Busy,
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Unmaps every leaf in the range and gives it to the gather. First splits large leaves that reach over
    /// an end of the range, which may need memory; after that nothing can fail.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing was unmapped then.
    pub fn unmap(&self, zap: &Zap, gather: &mut MmuGather<'_, '_, P>) -> Result<(), MapError> {
        debug_assert!(zap.limits.covers(zap.range));
        self.check(zap.range)?;
        gather.finish_busy();
        if zap.detach {
            let cut = self.cut(zap.range)?;
            self.unmap_cut(zap, zap.range, cut, gather);
        } else {
            self.split_ends(zap.range)?;
            self.unshare(zap.range)?;
            self.unmap_pass(zap, Pass { leaves: true, tables: false }, gather);
        }
        Ok(())
    }

    /// Splits large leaves that reach over an end of the range, and unshares tables that do and map pages on
    /// both sides. Exclusive, unless no table is shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; all translations are as before then.
    pub(crate) fn cut(&self, range: VirtRange) -> Result<RangeEnds<'p>, MapError> {
        if let Some(cut) = self.within_table(range) {
            return Ok(cut);
        }
        self.split_at(range.start)?;
        self.split_at(range.end)?;
        self.unshare_ends(range)?;
        Ok(RangeEnds { only: None })
    }

    /// [`Self::cut`] where nothing needs a cut, since one table of our own maps all of the range.
    #[inline(always)]
    pub(crate) fn within_table(&self, range: VirtRange) -> Option<RangeEnds<'p>> {
        let table = range.start.align_down(Level::PTE.table_bytes());
        let fits = range.end.0 - table.0 <= Level::PTE.table_bytes();
        let only = if fits { self.table_of(&self.walk(range.start)) } else { None };
        only.map(|_| RangeEnds { only })
    }

    /// Unmaps leaves and tables after the ends of `doomed`, which the caller unmaps, were cut: no large leaf
    /// reaches over an end of the range, and no shared table maps pages of the range and outside `doomed`.
    /// Needs no memory. Exclusive.
    pub(crate) fn unmap_cut(
        &self,
        zap: &Zap,
        doomed: VirtRange,
        cut: RangeEnds<'p>,
        gather: &mut MmuGather<'_, '_, P>,
    ) {
        debug_assert!(zap.detach && zap.limits.covers(zap.range) && doomed.covers(zap.range));
        debug_assert!(!self.is_crossed(zap.range.start) && !self.is_crossed(zap.range.end));
        gather.finish_busy();
        let covered = Level::PTE.table_bytes();
        if let Some(table) = cut.only
            && !zap.limits.covers(VirtRange::from_len(zap.range.start.align_down(covered), covered))
        {
            return self.unmap_in(table, zap.range, gather);
        }
        self.detach_shared(zap, doomed, gather);
        if !self.context.zap().is_by_table() {
            // The published ways unmap every leaf first, and then take out the empty tables.
            self.unmap_pass(zap, Pass { leaves: true, tables: false }, gather);
            self.unmap_pass(zap, Pass { leaves: false, tables: true }, gather);
        } else {
            self.unmap_pass(zap, Pass { leaves: true, tables: true }, gather);
        }
    }

    /// Detaches the tables of the range that lie wholly inside the limits and map nothing. Exclusive.
    pub(crate) fn detach_unused(&self, zap: &Zap, gather: &mut MmuGather<'_, '_, P>) {
        debug_assert!(zap.detach && zap.limits.covers(zap.range));
        self.unmap_pass(zap, Pass { leaves: false, tables: true }, gather);
    }

    /// Does what [`Self::unmap_cut`] does for a range of one page, without a gather; returns the change of
    /// resident memory. `None`, with nothing changed, for larger ranges, for a table that would be detached,
    /// and where no leaf is.
    #[inline(always)]
    pub(crate) fn unmap_single(&self, zap: &Zap, cut: RangeEnds<'p>) -> Option<RssChange> {
        let table = cut.only.filter(|_| zap.range.len() == FRAME_SIZE && self.context.zap().is_by_table())?;
        let covered = Level::PTE.table_bytes();
        if zap.limits.covers(VirtRange::from_len(zap.range.start.align_down(covered), covered)) {
            return None;
        }
        let (locked, index) = (self.lock(table), table.index(zap.range.start));
        let seen = locked.load(index);
        if !seen.is_present() {
            return None;
        }
        let page = UnmappedPage::new(self.allocator, locked.take(index, seen));
        locked.grow(-1);
        drop(locked);
        self.allocator.count(Stat::ZapEntry, 1);
        flush_page(self.allocator, self.context, zap.range.start);
        // SAFETY: invariant 2: the leaf was just flushed.
        Some(unsafe { page.release(self.allocator) })
    }

    /// Unmaps leaves of one table, which maps all of `rest`.
    #[inline(always)]
    fn unmap_in(&self, table: Table<'p>, mut rest: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        while !rest.is_empty() {
            gather.reserve(self.context);
            rest.start = self.unmap_leaves(&TableRange { table, range: rest, shared: false }, gather);
            gather.reschedule();
        }
    }

    /// Whether a large leaf maps the pages on both sides of an address.
    fn is_crossed(&self, at: VirtAddr) -> bool {
        self.lookup(at).leaf_size().is_some_and(|size| !at.is_aligned(size.bytes()))
    }

    fn unmap_pass(&self, zap: &Zap, pass: Pass, gather: &mut MmuGather<'_, '_, P>) {
        let mut rest = zap.range;
        while !rest.is_empty() {
            gather.reserve(self.context);
            rest.start = self.unmap_step(rest, zap, pass, gather);
            gather.reschedule();
        }
    }

    /// Unmaps what one table or one entry maps at the start of `rest`; returns where to go on.
    fn unmap_step(
        &self,
        rest: VirtRange,
        zap: &Zap,
        pass: Pass,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> VirtAddr {
        let mut table = self.root();
        let mut shared = false;
        loop {
            let entry = table.load(table.index(rest.start));
            if !entry.is_table(table.level()) {
                break;
            }
            let extent = table.extent(rest.start);
            if pass.tables && zap.limits.covers(extent) {
                self.detach(table, extent, rest.start, gather);
                if pass.leaves || !self.context.zap().is_by_table() {
                    self.allocator.count(Stat::ZapTable, 1);
                }
                return extent.end.min(rest.end);
            }
            shared = entry.is_shared_table(table.level());
            table = table.child(self.platform(), entry);
            if table.level() == Level::PTE {
                break;
            }
        }
        let index = table.index(rest.start);
        if table.level() != Level::PTE && table.load(index).is_empty() {
            // A fault may fill the first entry now; the step must not go back to its start.
            let empty = 1 + table.empty_from(index + 1, TABLE_ENTRIES) as u64;
            return rest.end.min(table.extent(rest.start).start.add(empty * table.level().entry_bytes()));
        }
        let bytes =
            if table.level() == Level::PTE { Level::PTE.table_bytes() } else { table.level().entry_bytes() };
        let end = rest.end.min(rest.start.align_down(bytes).add(bytes));
        let step = TableRange { table, range: VirtRange::new(rest.start, end), shared };
        // A table that is still shared maps nothing in the range.
        if !pass.leaves || shared {
            end
        } else if step.is_lowest() {
            self.unmap_leaves(&step, gather)
        } else {
            self.unmap_large(table, rest, zap.detach, gather)
        }
    }

    /// Detaches the table below the entry for `extent`; it maps nothing before `first`. The lock protects the
    /// count of entries; the address-space lock keeps walkers out.
    fn detach(
        &self,
        parent: Table<'p>,
        extent: VirtRange,
        first: VirtAddr,
        gather: &mut MmuGather<'_, '_, P>,
    ) {
        let locked = self.lock(parent);
        let entry = locked.exchange(parent.index(extent.start), Entry::EMPTY);
        drop(locked);
        gather.add(Unmapped::table(entry, parent.level()));
        if first > extent.start {
            gather.note_begin(entry.frame(), first);
        }
        gather.owe_tables(extent);
    }

    /// Unmaps the entries of a lowest-level table; returns where to go on.
    fn unmap_leaves(&self, step: &TableRange<'p>, gather: &mut MmuGather<'_, '_, P>) -> VirtAddr {
        let indices = step.indices();
        let locked = self.lock(step.table);
        let (at, taken, stop) = self.take_leaves(&locked, indices.clone(), gather);
        drop(locked);
        let next = step.range.start.add((at - indices.start) as u64 * PageSize::Size4K.bytes());
        if taken > 0 {
            gather.owe(VirtRange::new(step.range.start, next), PageSize::Size4K);
            self.allocator.count(Stat::ZapEntry, taken);
        }
        if stop == Stop::Busy {
            self.wait_while_busy(step.table, at, gather);
        }
        next
    }

    /// Unmaps the leaves of an upper table from the start of `rest` on, up to the first entry that is none or
    /// the end of the gather's room; returns where to go on. Leaves over an end stay.
    fn unmap_large(
        &self,
        table: Table<'p>,
        rest: VirtRange,
        exclusive: bool,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> VirtAddr {
        let (level, first) = (table.level(), table.index(rest.start));
        if table.load(first).is_busy() {
            self.wait_while_busy(table, first, gather);
            return rest.start;
        }
        let Some(size) = level.leaf_size() else { return rest.start };
        let extent = table.extent(rest.start);
        if !rest.covers(extent) {
            // No leaf was here when the ends were cut: a fault has mapped it since, as if after this call.
            return extent.end.min(rest.end);
        }
        let whole = (rest.len() / size.bytes()).max(1) as usize;
        let end = (first + whole).min(TABLE_ENTRIES);
        let (mut at, mut taken) = (first, 0);
        let locked = self.lock(table);
        while at < end && gather.span_room() >= 2 {
            let seen = locked.load(at);
            if seen.is_leaf(level) {
                // With the lock shared, a fault might map smaller leaves here before the flush.
                let leaf = if exclusive { locked.take(at, seen) } else { table.swap(at, Entry::BUSY) };
                if !leaf.has(EntryFlags::SPECIAL) {
                    gather.add(Unmapped::leaves(leaf, size, 1));
                }
                if !exclusive {
                    gather.add(Unmapped::busy(table.frame(), at));
                }
                taken += 1;
            } else if seen.is_poison() {
                locked.exchange(at, Entry::EMPTY);
            } else {
                // Another task may just have split it or made it busy: look again.
                break;
            }
            at += 1;
        }
        locked.grow(if exclusive { -(taken as i32) } else { 0 });
        drop(locked);
        if at == first {
            return rest.start;
        }
        let next = extent.start.add((at - first) as u64 * size.bytes());
        if taken > 0 {
            let taken_from = VirtRange::new(extent.start, next);
            debug_assert!(rest.covers(taken_from), "a leaf reaches over the range's end");
            gather.owe(taken_from, size);
            self.allocator.count(Stat::ZapEntry, taken);
        }
        next.min(rest.end)
    }

    /// Unmaps the whole leaf of 2 MiB at `addr`, so that it need not be split, unless it is anonymous.
    /// Shared.
    pub(crate) fn unmap_around(&self, addr: VirtAddr, gather: &mut MmuGather<'_, '_, P>) {
        loop {
            gather.finish_busy();
            let found = self.lookup(addr);
            let large = found.leaf_size() == Some(PageSize::Size2M) && !found.entry.has(EntryFlags::ANON);
            let Some(table) = self.find(addr, Level::PMD).filter(|_| large) else { return };
            gather.reserve(self.context);
            let leaf = table.extent(addr);
            if self.unmap_large(table, leaf, false, gather) == leaf.end {
                return;
            }
        }
    }

    /// Waits until an entry is no longer busy. First releases the gather's own busy entries, so that two
    /// tasks that wait for each other's entries both go on.
    #[cold]
    fn wait_while_busy(&self, table: Table<'p>, index: usize, gather: &mut MmuGather<'_, '_, P>) {
        gather.flush();
        while table.load(index).is_busy() {
            self.platform().relax();
        }
    }

    /// Takes leaves out until the gather is full. Returns where it stopped, how many it took, and why it
    /// stopped.
    fn take_leaves(
        &self,
        locked: &LockedTable<'_, P>,
        indices: core::ops::Range<usize>,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> (usize, u64, Stop) {
        let by_table = self.context.zap().is_by_table();
        let (mut at, mut taken, mut stop) = (indices.start, 0, Stop::Done);
        let mut open: Option<Open> = None;
        while at < indices.end {
            let seen = locked.load(at);
            if seen.is_present() {
                // For the open run and for one that this leaf may start.
                if gather.span_room() < 2 {
                    stop = Stop::Full;
                    break;
                }
                let leaf =
                    if by_table { locked.take(at, seen) } else { locked.table().swap(at, Entry::EMPTY) };
                taken += 1;
                match &mut open {
                    Some(run) if run.goes_on_with(leaf) => run.count += 1,
                    _ => {
                        close(open.take(), gather);
                        if !leaf.has(EntryFlags::SPECIAL) {
                            open = Some(Open::new(leaf, self.most_in_run(leaf)));
                        }
                    }
                }
            } else if seen.is_poison() {
                locked.table().store(at, Entry::EMPTY);
                taken += 1;
            } else if seen.is_busy() {
                stop = Stop::Busy;
                break;
            }
            at += 1;
        }
        close(open, gather);
        locked.grow(-(taken as i32));
        (at, taken, stop)
    }

    /// The most leaves of a run that starts with this one.
    #[inline]
    fn most_in_run(&self, _leaf: Entry) -> u64 {
        match self.context.zap() {
            #[cfg(feature = "published")]
            ZapStrategy::PerPage => 1,
            #[cfg(feature = "published")]
            ZapStrategy::Runs => self.allocator.frames().folio_rest(_leaf.frame()),
            ZapStrategy::Tables => u64::MAX,
        }
    }
}

/// A run of leaves that were taken out and go to the gather together.
struct Open {
    first: Entry,
    count: u64,
    most: u64,
}

impl Open {
    #[inline]
    fn new(first: Entry, most: u64) -> Self {
        Self { first, count: 1, most }
    }

    /// Whether the leaf continues the run. What hardware recorded matters for pages of files only.
    #[inline]
    fn goes_on_with(&self, leaf: Entry) -> bool {
        self.count < self.most
            && leaf.continues(self.first, self.count)
            && (leaf.has(EntryFlags::ANON) || recorded(leaf) == recorded(self.first))
    }
}

#[inline]
fn close<P: TablePlatform>(open: Option<Open>, gather: &mut MmuGather<'_, '_, P>) {
    if let Some(run) = open {
        gather.add(Unmapped::leaves(run.first, PageSize::Size4K, run.count));
    }
}
