//! Moves leaves to other addresses, for `mremap`.

use core::sync::atomic::Ordering;

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

    /// Moves what one entry or one lowest-level table maps at the start of `rest`; returns how many bytes.
    fn move_step(&self, rest: VirtRange, to: VirtAddr, owed: &mut FlushBatch) -> Result<u64, MapError> {
        let mut table = self.root();
        loop {
            let entry = table.load(table.index(rest.start));
            let extent = table.extent(rest.start);
            if !(entry.is_present() || entry.is_poison()) || table.level() == Level::PTE {
                break;
            }
            if rest.covers(extent)
                && to.is_aligned(extent.len())
                && self.move_entry(table, extent, to, owed)?
            {
                return Ok(extent.len());
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

    /// Moves the entry for `extent` to the same level at `to`, unless that is in use; returns whether it did.
    fn move_entry(
        &self,
        table: Table<'p>,
        extent: VirtRange,
        to: VirtAddr,
        owed: &mut FlushBatch,
    ) -> Result<bool, MapError> {
        let target = match self.ensure(to, table.level()) {
            Ok(target) => target,
            Err(MapError::Occupied) => return Ok(false),
            Err(error) => return Err(error),
        };
        let index = target.index(to);
        if !target.load(index).is_empty() {
            return Ok(false);
        }
        let source = self.lock(table);
        let entry = source.exchange(table.index(extent.start), Entry::EMPTY);
        drop(source);
        self.lock(target).fill(index, entry);
        if entry.is_shared_table(table.level()) {
            // A shared table has no place to note.
            owed.add_tables(extent);
        } else if entry.is_table(table.level()) {
            let place = place_of(target.frame(), index);
            self.allocator.frames().descriptor(entry.frame()).word.store(place, Ordering::Relaxed);
            owed.add_tables(extent);
        } else if let Some(size) = table.level().leaf_size() {
            owed.add(extent, size);
        }
        Ok(true)
    }

    /// Moves 4 KiB leaves from one table to another, up to the end of either.
    fn move_leaves(
        &self,
        table: Table<'p>,
        rest: VirtRange,
        to: VirtAddr,
        owed: &mut FlushBatch,
    ) -> Result<u64, MapError> {
        let covered = Level::PTE.table_bytes();
        let room = |addr: VirtAddr| addr.align_down(covered).0 + covered - addr.0;
        let bytes = rest.len().min(room(rest.start)).min(room(to));
        let count = (bytes / PageSize::Size4K.bytes()) as usize;
        let first = table.index(rest.start);
        if (first..first + count).all(|index| table.load(index).is_empty()) {
            return Ok(bytes);
        }
        self.unshare(VirtRange::from_len(to.align_down(covered), covered))?;
        let target = self.ensure(to, Level::PTE)?;
        let at = target.index(to);
        let source = self.lock(table);
        if target.frame() == table.frame() {
            for step in 0..count {
                move_leaf(&source, first + step, &source, at + step);
            }
            source.grow(0);
        } else {
            let other = self.lock_second(target);
            other.inherit_kinds(&source);
            let moved = (0..count).filter(|step| move_leaf(&source, first + step, &other, at + step)).count();
            source.grow(-(moved as i32));
            other.grow(moved as i32);
        }
        owed.add(VirtRange::from_len(rest.start, bytes), PageSize::Size4K);
        Ok(bytes)
    }
}

/// The end of what a table covers around the extent of one of its entries.
fn table_end(table: Table<'_>, extent: VirtRange) -> VirtAddr {
    extent.start.align_down(table.level().table_bytes()).add(table.level().table_bytes())
}

/// Moves one leaf; returns whether there was one.
#[inline]
fn move_leaf<P: TablePlatform>(
    source: &super::lock::LockedTable<'_, P>,
    from: usize,
    target: &super::lock::LockedTable<'_, P>,
    to: usize,
) -> bool {
    let leaf = source.load(from);
    let moves = leaf.is_present() || leaf.is_poison();
    if moves {
        let leaf = source.take(from, leaf);
        target.table().store(to, leaf);
    }
    moves
}
