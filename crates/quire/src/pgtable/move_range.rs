//! Moves leaves to other addresses, for `mremap`.

use core::sync::atomic::Ordering;

use super::lock::LockedTable;
use super::{PageTables, place_of};
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, Level};
use crate::error::MapError;
use crate::page_alloc::Gfp;
use crate::platform::TablePlatform;
use crate::tlb::FlushBatch;
use crate::tlb::words::Table;

/// A move that memory did not suffice for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveError {
    /// How many bytes from the start of the range were moved.
    pub moved: u64,
    /// Why the rest was not.
    pub error: MapError,
}

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Moves every leaf in `from` to the range of that length at `to`, which maps nothing and does not
    /// overlap it. Whole tables and large leaves move by one entry where both sides are aligned and the
    /// target's entry is empty. Counts do not change. Exclusive, until the flush that the caller owes, also
    /// after an error.
    ///
    /// # Errors
    /// [`MoveError`] with [`MapError::OutOfMemory`] or [`MapError::BadAddress`]. Moving back needs no memory.
    pub fn move_range(&self, from: VirtRange, to: VirtAddr, owed: &mut FlushBatch) -> Result<(), MoveError> {
        let target = VirtRange { start: to, end: VirtAddr(to.0.saturating_add(from.len())) };
        let failed = |moved| move |error| MoveError { moved, error };
        self.check(from).and(self.check(target)).map_err(failed(0))?;
        debug_assert!(!from.overlaps(target));
        self.split_ends(from).map_err(failed(0))?;
        let mut moved = 0;
        while moved < from.len() {
            let rest = VirtRange::new(from.start.add(moved), from.end);
            moved += self.move_step(rest, to.add(moved), owed).map_err(failed(moved))?;
            self.platform().reschedule_point();
        }
        Ok(())
    }

    /// Moves what one entry or one table maps at the start of `rest`; returns how many bytes.
    fn move_step(&self, rest: VirtRange, to: VirtAddr, owed: &mut FlushBatch) -> Result<u64, MapError> {
        owed.owe_for(self.context);
        let mut table = self.root();
        loop {
            let entry = table.load(table.index(rest.start));
            let extent = table.extent(rest.start);
            if !moves(entry) || table.level() == Level::PTE {
                break;
            }
            if rest.covers(extent) && to.is_aligned(extent.len()) {
                let bytes = self.move_entries(table, rest, to, owed)?;
                if bytes > 0 {
                    return Ok(bytes);
                }
            }
            if entry.is_poison() {
                // A marker cannot be split: where the target has smaller pages, it goes.
                self.lock(table).exchange(table.index(extent.start), Entry::EMPTY);
                return Ok(extent.end.min(rest.end).0 - rest.start.0);
            }
            if !entry.is_table(table.level()) {
                // Smaller leaves can go anywhere. Where alignment forbids this one, those behind it come
                // next.
                let alone = to.is_aligned(extent.len());
                let end = if alone { extent.end } else { rest.end.min(table_end(table, extent)) };
                self.split_leaves(VirtRange::new(extent.start, end), table.level(), Gfp::KERNEL)?;
                continue;
            }
            if entry.is_shared_table(table.level()) {
                self.unshare(extent)?;
                continue;
            }
            table = table.child(self.platform(), entry);
        }
        if table.level() == Level::PTE {
            return self.move_leaves(table, rest, to, owed);
        }
        Ok(table.extent(rest.start).end.min(rest.end).0 - rest.start.0)
    }

    /// Moves the entries of an upper table at the start of `rest` to the same level at `to`, up to the end of
    /// either table or the first entry in use there. Returns how many bytes they cover.
    fn move_entries(
        &self,
        table: Table<'p>,
        rest: VirtRange,
        to: VirtAddr,
        owed: &mut FlushBatch,
    ) -> Result<u64, MapError> {
        let level = table.level();
        let target = match self.ensure(to, level) {
            Ok(target) => target,
            Err(MapError::Occupied) => return Ok(0),
            Err(error) => return Err(error),
        };
        let (first, at) = (table.index(rest.start), target.index(to));
        let (source, second) = self.lock_both(table, target);
        let other = second.as_ref().unwrap_or(&source);
        let count = target.empty_from(at, at + shared_entries(level, rest, to));
        let (mut moved, mut tables) = (0, false);
        for step in 0..count {
            let entry = move_entry(&source, first + step, other, at + step);
            moved += i32::from(!entry.is_empty());
            tables |= entry.is_table(level);
            // A shared table has no place to note.
            if entry.is_table(level) && !entry.is_shared_table(level) {
                let place = place_of(target.frame(), at + step);
                self.allocator.frames().descriptor(entry.frame()).word.store(place, Ordering::Relaxed);
            }
        }
        source.grow(-moved);
        other.grow(moved);
        let range = VirtRange::from_len(rest.start, count as u64 * level.entry_bytes());
        match level.leaf_size() {
            _ if tables => owed.add_tables(range),
            Some(size) => owed.add(range, size),
            None => {}
        }
        Ok(range.len())
    }

    /// Moves 4 KiB leaves from one table to another, up to the end of either.
    fn move_leaves(
        &self,
        table: Table<'p>,
        rest: VirtRange,
        to: VirtAddr,
        owed: &mut FlushBatch,
    ) -> Result<u64, MapError> {
        let first = table.index(rest.start);
        let entries = first..first + shared_entries(Level::PTE, rest, to);
        let bytes = entries.len() as u64 * PageSize::Size4K.bytes();
        if entries.clone().all(|index| table.load(index).is_empty()) {
            return Ok(bytes);
        }
        let covered = Level::PTE.table_bytes();
        self.unshare(VirtRange::from_len(to.align_down(covered), covered))?;
        let target = self.ensure(to, Level::PTE)?;
        let (source, second) = self.lock_both(table, target);
        let other = second.as_ref().unwrap_or(&source);
        other.inherit_kinds(&source);
        let mut unmoved = 0;
        table.move_settled(entries.clone(), target, target.index(to), |from, to| {
            unmoved += i32::from(move_entry(&source, from, other, to).is_empty());
        });
        let moved = entries.len() as i32 - unmoved;
        source.grow(-moved);
        other.grow(moved);
        owed.add(VirtRange::from_len(rest.start, bytes), PageSize::Size4K);
        Ok(bytes)
    }

    /// Locks two tables; the second is `None` if it is the first.
    fn lock_both(
        &self,
        table: Table<'p>,
        target: Table<'p>,
    ) -> (LockedTable<'_, P>, Option<LockedTable<'_, P>>) {
        let source = self.lock(table);
        let second = (target.frame() != table.frame()).then(|| self.lock_second(target));
        (source, second)
    }
}

/// How many entries of a level lie in `rest`, from its start on, up to the end of the table there and of that
/// at `to`.
fn shared_entries(level: Level, rest: VirtRange, to: VirtAddr) -> usize {
    let room = |addr: VirtAddr| addr.align_down(level.table_bytes()).0 + level.table_bytes() - addr.0;
    (rest.len().min(room(rest.start)).min(room(to)) / level.entry_bytes()) as usize
}

/// The end of what a table covers around the extent of one of its entries.
fn table_end(table: Table<'_>, extent: VirtRange) -> VirtAddr {
    extent.start.align_down(table.level().table_bytes()).add(table.level().table_bytes())
}

/// Whether an entry goes to the new addresses.
#[inline]
fn moves(entry: Entry) -> bool {
    entry.is_present() || entry.is_poison()
}

/// Moves one entry, if it moves; returns it, or an empty one.
#[inline]
fn move_entry<P: TablePlatform>(
    source: &LockedTable<'_, P>,
    from: usize,
    target: &LockedTable<'_, P>,
    to: usize,
) -> Entry {
    let seen = source.load(from);
    if !moves(seen) {
        return Entry::EMPTY;
    }
    let entry = source.take(from, seen);
    target.table().store(to, entry);
    entry
}
