//! Making one large leaf out of a full table of small ones.

use core::sync::atomic::Ordering;

use super::PageTables;
use crate::addr::{FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::TABLE_ENTRIES;
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
        let size = PageSize::Size2M;
        if !addr.is_aligned(size.bytes()) {
            return Err(MapError::Unaligned);
        }
        let extent = VirtRange::from_len(addr, size.bytes());
        self.check(extent)?;
        self.unshare(extent)?;
        let Some(parent) = self.find(addr, Level::PMD) else { return Ok(false) };
        let index = parent.index(addr);
        let pointer = parent.load(index);
        if !pointer.is_table(Level::PMD) {
            return Ok(false);
        }
        let table = parent.child(self.platform(), pointer);
        let Some(first) = one_folio(table) else { return Ok(false) };
        if !self.allocator.counter().try_map_large(first.frame(), size) {
            return Ok(false);
        }
        self.lock(parent).exchange(index, Entry::BUSY);
        let mut owed = FlushBatch::new();
        owed.add_tables(parent.extent(addr));
        owed.flush(self.allocator, self.context);
        let leaf = large_leaf(table, first);
        self.allocator.counter().unmap(FrameRange::folio(leaf.frame(), size.order()));
        self.lock(parent).fill(index, leaf);
        self.free_table(table);
        Ok(true)
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

/// The first of 512 leaves that map one block in order, if that is what the table holds.
fn one_folio(table: Table<'_>) -> Option<Entry> {
    let first = table.load(0);
    let whole = first.is_present()
        && first.frame().is_aligned(Order::BLOCK)
        && !first.has(EntryFlags::SPECIAL)
        && table.run_length(0, TABLE_ENTRIES, first) == TABLE_ENTRIES;
    whole.then_some(first)
}

/// The large leaf with all that hardware recorded in the small ones of a table that nobody reaches any more.
fn large_leaf(table: Table<'_>, first: Entry) -> Entry {
    let history = (0..TABLE_ENTRIES)
        .map(|index| table.load_private(index).flags().intersection(EntryFlags::HISTORY))
        .fold(EntryFlags::NONE, EntryFlags::union);
    let flags = first.flags().without(EntryFlags::HISTORY).union(history);
    Entry::leaf(first.frame(), PageSize::Size2M, flags)
}
