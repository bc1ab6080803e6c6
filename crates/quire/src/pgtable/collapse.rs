//! Replaces a table by one large leaf, if all its leaves map one folio, in order and with the same rights.
//!
//! Frames and rights stay the same, so all CPUs read and store on, and a secondary MMU keeps its copies: it
//! is told afterwards that a larger one is possible. (Insight of the discussion of hugetlb high-granularity
//! mapping, February 2023; it does not hold for a collapse that moves contents.)
//!
//! # Order
//!
//! 1. Compare each entry of the tables with what it must be. Any other entry refuses the whole call, which
//!    has changed nothing by then. [`PageTables::check_collapse`] may have compared a table before; if none
//!    of its entries has changed since, its grain says so, and it is not read again.
//! 2. Count the large leaf: for 2 MiB, by moving the table's count to it. Exchange the pointer to the table
//!    for [`Entry::BUSY`], and flush all CPUs, paging-structure caches included. From here on no CPU reaches
//!    the table, and hardware records nothing in it any more.
//! 3. Store the leaf, with what hardware had recorded when the table was compared. Only a CPU that touches
//!    the range between 2 and 3 waits: it faults, and finds the leaf.
//! 4. Read from the table what hardware recorded between 1 and 2, and add it to the leaf, unless it is
//!    settled. No verb decides from those bits meanwhile: it would hold the address-space lock.
//! 5. Give the table to a gather. After the lock was given back, that drops the counts which still belong to
//!    the table, and frees it.
//!
//! The caller holds the address-space lock *exclusive* from 1 to 4.

use core::sync::atomic::Ordering;

use super::PageTables;
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::{BLOCK_ORDER, COLLAPSE_TABLES, TABLE_ENTRIES};
use crate::platform::TablePlatform;
use crate::tlb::words::Table;
use crate::tlb::{FlushBatch, MmuGather, Unmapped};

/// Why leaves cannot become one large leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// A part is not mapped.
    Hole,
    /// The leaves differ in their rights, or in whether they are marked for a handler.
    Rights,
    /// The leaves do not map one folio of that size in order.
    Frames,
    /// The memory of one leaf went bad.
    Lost,
    /// A task is replacing one of the leaves.
    Busy,
    /// Other address spaces reach the table.
    Shared,
}

/// What all small leaves have in common, and what hardware recorded in any of them.
#[derive(Clone, Copy)]
struct Common {
    /// Of the first leaf.
    frame: Frame,
    /// Of all leaves, without history.
    flags: EntryFlags,
    history: EntryFlags,
    /// How many leaves of 2 MiB were zero when they were made.
    zeroed: usize,
}

/// A table that a leaf replaces.
#[derive(Clone, Copy)]
struct ReplacedTable<'a> {
    index: usize,
    table: Table<'a>,
    /// The entry that points to the table.
    pointer: Entry,
    leaf: Entry,
    /// The table's count was moved to the leaf.
    moved: bool,
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Checks whether one leaf of `size` at `addr` could replace the leaves of `part` of its extent. The ends
    /// of the part are multiples of 2 MiB. Reads every entry of it, and notes which tables need not be read
    /// again. Shared; the answer may be old.
    ///
    /// # Errors
    /// The first [`Obstacle`].
    pub fn check_collapse(&self, addr: VirtAddr, size: PageSize, part: VirtRange) -> Result<(), Obstacle> {
        let first = self.lookup(addr);
        let mut common = Common::of(first.entry, first.level)?;
        if !common.frame.is_aligned(size.order()) {
            return Err(Obstacle::Frames);
        }
        let mut at = part.start;
        while at < part.end {
            let step = self.step(VirtRange::new(at, part.end));
            let distance = (at.0 - addr.0) / PageSize::Size4K.bytes();
            if step.is_lowest() {
                let locked = self.lock(step.table);
                let history = common.compare(step.table, distance)?;
                locked.note_compared(history);
            } else {
                let entry = step.table.load(step.table.index(at));
                common.add_leaf(entry, step.table.level(), distance)?;
            }
            at = step.range.end;
        }
        Ok(())
    }

    /// Replaces the tables of a range of whole ones, whose entries stand in one table, by leaves of 2 MiB.
    /// Returns how many; leaves that are large already stay. Takes at most [`COLLAPSE_TABLES`] of them, with
    /// one flush. The tables go to the gather, which the caller may finish without the lock, and whose
    /// resident-memory change means nothing here. `checked`: no task has held the lock exclusive since
    /// [`Self::check_collapse`], other than for this. The caller tells secondary MMUs. Exclusive.
    ///
    /// # Errors
    /// The first [`Obstacle`]; nothing has changed then, save where a folio was split a moment ago.
    pub fn collapse_tables(
        &self,
        range: VirtRange,
        checked: bool,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<u64, Obstacle> {
        debug_assert!(range.len() <= COLLAPSE_TABLES as u64 * PageSize::Size2M.bytes());
        self.reshape(range, PageSize::Size2M, checked, gather)
    }

    /// Replaces all that maps an extent of 1 GiB, whatever its leaves' sizes, by one leaf. Returns whether it
    /// was not one leaf before. As [`Self::collapse_tables`] otherwise.
    ///
    /// # Errors
    /// As [`Self::collapse_tables`].
    pub fn collapse_whole(
        &self,
        addr: VirtAddr,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<bool, Obstacle> {
        let extent = VirtRange::from_len(addr, PageSize::Size1G.bytes());
        self.reshape(extent, PageSize::Size1G, false, gather).map(|collapsed| collapsed == 1)
    }

    /// Replaces 512 leaves of 4 KiB that map a whole block in order with the same rights by one leaf of 2
    /// MiB. Returns whether it could. Needs memory only for a table that is shared. Exclusive.
    ///
    /// # Errors
    /// [`MapError::Unaligned`], [`MapError::BadAddress`], [`MapError::OutOfMemory`].
    pub fn collapse(&self, addr: VirtAddr) -> Result<bool, MapError> {
        let extent = self.extent_of(addr, PageSize::Size2M)?;
        self.unshare(extent)?;
        Ok(self.reshape_one(extent, PageSize::Size2M))
    }

    /// As [`Self::collapse`] one level up: a leaf of 1 GiB replaces smaller ones that map a gigantic folio.
    ///
    /// # Errors
    /// As [`Self::collapse`].
    pub fn collapse_gigantic(&self, addr: VirtAddr) -> Result<bool, MapError> {
        let extent = self.extent_of(addr, PageSize::Size1G)?;
        Ok(self.reshape_one(extent, PageSize::Size1G))
    }

    fn extent_of(&self, addr: VirtAddr, size: PageSize) -> Result<VirtRange, MapError> {
        if !addr.is_aligned(size.bytes()) {
            return Err(MapError::Unaligned);
        }
        let extent = VirtRange { start: addr, end: VirtAddr(addr.0.wrapping_add(size.bytes())) };
        self.check(extent).map(|()| extent)
    }

    fn reshape_one(&self, extent: VirtRange, size: PageSize) -> bool {
        let mut gather = MmuGather::new(self.allocator, self.context);
        let collapsed = self.reshape(extent, size, false, &mut gather) == Ok(1);
        gather.finish();
        if collapsed {
            self.context.collapse_possible(self.platform(), extent);
        }
        collapsed
    }

    fn reshape(
        &self,
        range: VirtRange,
        size: PageSize,
        checked: bool,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<u64, Obstacle> {
        let Some(parent) = self.find(range.start, Level::of_leaf(size)) else { return Err(Obstacle::Hole) };
        let mut pieces = [None; COLLAPSE_TABLES];
        let first = parent.index(range.start);
        let indices = first..first + (range.len() / size.bytes()) as usize;
        for (piece, index) in pieces.iter_mut().zip(indices) {
            *piece = self.compare(parent, index, size, checked)?;
        }
        let tables = pieces.iter().flatten().count() as u64;
        let counted = self.count_large(&mut pieces, size);
        self.exchange(parent, range, &pieces);
        for piece in pieces.iter().flatten() {
            if piece.moved {
                // Its count was moved, so the drain must find no entries.
                let descriptor = self.allocator.frames().descriptor(piece.table.frame());
                descriptor.population.store(0, Ordering::Relaxed);
            } else {
                self.describe(piece.table);
            }
            gather.reserve(self.context);
            gather.add(Unmapped::table(piece.pointer, parent.level()));
        }
        if counted == tables { Ok(counted) } else { Err(Obstacle::Frames) }
    }

    /// Compares all that the table below an entry maps; `None` if the entry is a leaf already.
    fn compare(
        &self,
        parent: Table<'p>,
        index: usize,
        size: PageSize,
        checked: bool,
    ) -> Result<Option<ReplacedTable<'p>>, Obstacle> {
        let pointer = parent.load(index);
        if pointer.is_leaf(parent.level()) {
            return Ok(None);
        }
        if !pointer.is_table(parent.level()) {
            return Err(obstacle(pointer));
        }
        if pointer.is_shared_table(parent.level()) {
            return Err(Obstacle::Shared);
        }
        let table = parent.child(self.platform(), pointer);
        let mut common = self.first_of(table)?;
        if !common.frame.is_aligned(size.order()) {
            return Err(Obstacle::Frames);
        }
        match self.seen_in(table).filter(|_| checked) {
            Some(history) => common.history = history,
            None => common.add_table(self.platform(), table, 0)?,
        }
        Ok(Some(ReplacedTable { index, table, pointer, leaf: common.leaf(size), moved: false }))
    }

    /// What was recorded in a lowest-level table when it was compared, if it has not changed since.
    fn seen_in(&self, table: Table<'p>) -> Option<EntryFlags> {
        let compared = self.allocator.frames().descriptor(table.frame()).compared();
        compared.filter(|_| table.level() == Level::PTE).map(|recorded| Entry::from_bits(recorded).flags())
    }

    /// What the first leaf of a table has, or of the first table below it.
    fn first_of(&self, table: Table<'p>) -> Result<Common, Obstacle> {
        let first = table.load(0);
        if first.is_table(table.level()) {
            return self.first_of(table.child(self.platform(), first));
        }
        Common::of(first, table.level())
    }

    /// Counts the large leaves. Where a folio was split meanwhile, that piece and those behind it stay.
    fn count_large(&self, pieces: &mut [Option<ReplacedTable<'p>>], size: PageSize) -> u64 {
        let mut counter = self.allocator.counts().counter();
        let mut counted = 0;
        let mut whole = true;
        for place in pieces {
            let Some(piece) = place else { continue };
            piece.moved = size == PageSize::Size2M && counter.counts_by_table();
            let frame = piece.leaf.frame();
            whole = whole
                && if piece.moved { counter.try_merge(frame) } else { counter.try_map_large(frame, size) };
            if whole {
                counted += 1;
            } else {
                *place = None;
            }
        }
        counted
    }

    /// Takes the tables out, flushes, and puts the leaves in.
    fn exchange(&self, parent: Table<'p>, range: VirtRange, pieces: &[Option<ReplacedTable<'p>>]) {
        if pieces.iter().all(Option::is_none) {
            return;
        }
        let locked = self.lock(parent);
        for piece in pieces.iter().flatten() {
            locked.exchange(piece.index, Entry::BUSY);
        }
        drop(locked);
        let mut owed = FlushBatch::new();
        owed.add_reshaped(range);
        owed.flush(self.allocator, self.context);
        let locked = self.lock(parent);
        for piece in pieces.iter().flatten() {
            locked.fill(piece.index, piece.leaf);
        }
        drop(locked);
        for piece in pieces.iter().flatten().filter(|piece| !piece.leaf.is_settled()) {
            let late = self.recorded(piece.table);
            let locked = self.lock(parent);
            locked.update(piece.index, locked.load(piece.index), |leaf| leaf.with(late));
        }
    }

    /// What hardware recorded in a table that no CPU reaches any more, and in the tables below it.
    fn recorded(&self, table: Table<'p>) -> EntryFlags {
        let recordable = EntryFlags::ACCESSED | EntryFlags::DIRTY;
        let mut all = EntryFlags::NONE;
        for entry in (0..TABLE_ENTRIES).map(|index| table.load_private(index)) {
            all = all.union(if entry.is_table(table.level()) {
                self.recorded(table.child(self.platform(), entry))
            } else {
                entry.flags().intersection(recordable)
            });
        }
        all
    }

    /// Notes that each lowest-level table, which no CPU reaches any more, is one run: the drain need not
    /// look.
    fn describe(&self, table: Table<'p>) {
        if table.level() == Level::PTE {
            return self.allocator.frames().descriptor(table.frame()).set_grain(BLOCK_ORDER.into());
        }
        for entry in (0..TABLE_ENTRIES).map(|index| table.load_private(index)) {
            if entry.is_table(table.level()) {
                self.describe(table.child(self.platform(), entry));
            }
        }
    }
}

impl Common {
    /// Starts the comparison at the first leaf.
    fn of(entry: Entry, level: Level) -> Result<Self, Obstacle> {
        if !entry.is_leaf(level) {
            return Err(obstacle(entry));
        }
        if entry.has(EntryFlags::SPECIAL) {
            return Err(Obstacle::Frames);
        }
        let flags = entry.flags().without(EntryFlags::HISTORY | EntryFlags::LARGE);
        Ok(Self { frame: entry.frame(), flags, history: EntryFlags::NONE, zeroed: 0 })
    }

    /// The large leaf. It keeps `ZEROED` only where all leaves are of 2 MiB and have it: stores to those are
    /// recorded, while smaller ones may have been stored to since they were zero.
    fn leaf(&self, size: PageSize) -> Entry {
        let all = size == PageSize::Size1G && self.zeroed == TABLE_ENTRIES;
        let zeroed = if all { EntryFlags::ZEROED } else { EntryFlags::NONE };
        let history = self.history.without(EntryFlags::ZEROED).union(zeroed);
        Entry::leaf(self.frame, size, self.flags.union(history))
    }

    /// The leaf that must stand `distance` frames behind the first.
    fn expected(&self, size: PageSize, distance: u64) -> Entry {
        Entry::leaf(self.frame.add(distance), size, self.flags)
    }

    /// Compares a table, which begins `distance` frames behind the first leaf, and all tables below it.
    fn add_table<P: TablePlatform>(
        &mut self,
        platform: &P,
        table: Table<'_>,
        distance: u64,
    ) -> Result<(), Obstacle> {
        if table.level() == Level::PTE {
            let history = self.compare(table, distance)?;
            self.history = self.history.union(history);
            return Ok(());
        }
        for index in 0..TABLE_ENTRIES {
            let entry = table.load(index);
            let distance = distance + index as u64 * PageSize::Size2M.frames();
            if entry.is_shared_table(table.level()) {
                return Err(Obstacle::Shared);
            } else if entry.is_table(table.level()) {
                self.add_table(platform, table.child(platform, entry), distance)?;
            } else {
                self.add_leaf(entry, table.level(), distance)?;
            }
        }
        Ok(())
    }

    /// Compares a lowest-level table; returns what is recorded in it.
    fn compare(&self, table: Table<'_>, distance: u64) -> Result<EntryFlags, Obstacle> {
        let expected = self.expected(PageSize::Size4K, distance);
        table.whole_run(expected).map_err(|at| self.differs(table.load(at), table.level()))
    }

    fn add_leaf(&mut self, entry: Entry, level: Level, distance: u64) -> Result<(), Obstacle> {
        let size = level.leaf_size().ok_or(Obstacle::Hole)?;
        // The distance may lie inside the leaf of the first lookup.
        let expected = self.expected(size, distance - distance % size.frames());
        if !entry.is_leaf(level) || entry.differs_from(expected) != 0 {
            return Err(self.differs(entry, level));
        }
        self.history = self.history.union(entry.flags().intersection(EntryFlags::HISTORY));
        self.zeroed += usize::from(entry.has(EntryFlags::ZEROED));
        Ok(())
    }

    fn differs(&self, entry: Entry, level: Level) -> Obstacle {
        if !entry.is_leaf(level) {
            return obstacle(entry);
        }
        let flags = entry.flags().without(EntryFlags::HISTORY | EntryFlags::LARGE);
        if flags == self.flags || entry.has(EntryFlags::SPECIAL) {
            Obstacle::Frames
        } else {
            Obstacle::Rights
        }
    }
}

/// Why an entry that is no leaf is an obstacle.
fn obstacle(entry: Entry) -> Obstacle {
    if entry.is_poison() {
        Obstacle::Lost
    } else if entry.is_busy() {
        Obstacle::Busy
    } else {
        Obstacle::Hole
    }
}
