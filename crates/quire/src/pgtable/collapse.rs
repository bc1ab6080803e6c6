//! Making one large leaf out of a full table of small ones.

use core::sync::atomic::Ordering;

use super::PageTables;
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::TABLE_ENTRIES;
use crate::page_alloc::Contents;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::FlushBatch;
use crate::tlb::words::Table;

impl<'p, P: Platform> PageTables<'_, 'p, P> {
    /// Puts one 2 MiB leaf in the place of 512 leaves of 4 KiB that map a whole block in order with the same rights;
    /// whether it could. Takes the table out, flushes, and only then reads what hardware recorded in it. Needs
    /// memory for a table that is shared only. Exclusive.
    ///
    /// # Errors
    /// [`MapError::Unaligned`], [`MapError::BadAddress`], [`MapError::OutOfMemory`].
    pub fn collapse(&self, addr: VirtAddr) -> Result<bool, MapError> {
        self.collapse_to(addr, PageSize::Size2M)
    }

    /// The same one level up: a 1 GiB leaf in the place of 512 leaves of 2 MiB that map a gigantic folio.
    ///
    /// # Errors
    /// As [`Self::collapse`].
    pub fn collapse_gigantic(&self, addr: VirtAddr) -> Result<bool, MapError> {
        self.collapse_to(addr, PageSize::Size1G)
    }

    fn collapse_to(&self, addr: VirtAddr, size: PageSize) -> Result<bool, MapError> {
        if !addr.is_aligned(size.bytes()) {
            return Err(MapError::Unaligned);
        }
        let (level, extent) = (Level::of_leaf(size), VirtRange::from_len(addr, size.bytes()));
        self.check(extent)?;
        if size == PageSize::Size2M {
            self.unshare(extent)?;
        }
        let Some(parent) = self.find(addr, level) else { return Ok(false) };
        let index = parent.index(addr);
        let pointer = parent.load(index);
        if !pointer.is_table(level) {
            return Ok(false);
        }
        let table = parent.child(self.platform(), pointer);
        let Some(first) = one_folio(table, size) else { return Ok(false) };
        if !self.allocator.counter().try_map_large(first.frame(), size) {
            return Ok(false);
        }
        self.lock(parent).exchange(index, Entry::BUSY);
        let mut owed = FlushBatch::new();
        owed.add_tables(parent.extent(addr));
        owed.flush(self.allocator, self.context);
        let leaf = large_leaf(table, first, size);
        self.uncount_parts(leaf.frame(), size);
        self.lock(parent).fill(index, leaf);
        self.free_table(table);
        Ok(true)
    }

    /// Drops the counts of the 512 leaves in whose place one of `size` comes, which is counted already.
    fn uncount_parts(&self, frame: Frame, size: PageSize) {
        let mut counter = self.allocator.counter();
        if size == PageSize::Size2M {
            counter.unmap(FrameRange::folio(frame, size.order()));
            return;
        }
        for part in (0..size.frames()).step_by(TABLE_ENTRIES) {
            counter.unmap_large(frame.add(part), PageSize::Size2M, Contents::Unknown);
        }
    }

    /// Frees a table that was taken out and flushed.
    fn free_table(&self, table: Table<'p>) {
        let descriptor = self.allocator.descriptor(table.frame());
        descriptor.clear_flags();
        descriptor.population.store(0, Ordering::Relaxed);
        let freed = self.allocator.free(table.frame(), Order::FRAME);
        debug_assert_eq!(freed, Ok(()));
        self.allocator.change(Stat::NrPageTablePages, -1);
        self.context.remove_tables(1);
    }
}

/// The first of 512 leaves that map one folio in order, if that is what the table holds.
fn one_folio(table: Table<'_>, size: PageSize) -> Option<Entry> {
    let (first, step) = (table.load(0), size.frames() / TABLE_ENTRIES as u64);
    let whole = first.is_leaf(table.level())
        && first.frame().is_aligned(size.order())
        && !first.has(EntryFlags::SPECIAL)
        && (1..TABLE_ENTRIES).all(|at| {
            let leaf = table.load(at);
            leaf.is_leaf(table.level())
                && leaf.frame() == first.frame().add(at as u64 * step)
                && leaf.flags().without(EntryFlags::HISTORY) == first.flags().without(EntryFlags::HISTORY)
        });
    whole.then_some(first)
}

/// The large leaf with all that hardware recorded in the smaller ones of a table that nobody reaches any more.
fn large_leaf(table: Table<'_>, first: Entry, size: PageSize) -> Entry {
    let history = (0..TABLE_ENTRIES)
        .map(|index| table.load_private(index).flags().intersection(EntryFlags::HISTORY))
        .fold(EntryFlags::NONE, EntryFlags::union);
    // What some of them map may have been stored to.
    let flags = first.flags().without(EntryFlags::HISTORY).union(history.without(EntryFlags::ZEROED));
    Entry::leaf(first.frame(), size, flags)
}
