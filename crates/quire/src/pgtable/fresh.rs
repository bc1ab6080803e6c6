//! A new table that is not installed yet.

use core::sync::atomic::Ordering;

use super::lock::LockedTable;
use crate::addr::{Frame, Order};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::AllocError;
use crate::limits::TABLE_ENTRIES;
use crate::memmap::DescriptorFlags;
use crate::page_alloc::{Contents, Gfp, PageAllocator};
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::{Table, USER_ENTRIES, clear_table};
use crate::tlb::{MmContext, Unmapped};

/// A new table that nothing else names. Dropping it frees its frame.
pub(super) struct FreshTable<'a, 'p, P: TablePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    frame: Frame,
    level: Level,
}

impl<'a, 'p, P: TablePlatform> FreshTable<'a, 'p, P> {
    /// Allocates and empties a frame. Not under a page-table lock.
    pub(super) fn new(allocator: &'a PageAllocator<'p, P>, level: Level) -> Result<Self, AllocError> {
        Self::by(allocator, level, Gfp::KERNEL)
    }

    /// As [`Self::new`], with a frame allocated by `gfp`.
    pub(super) fn by(
        allocator: &'a PageAllocator<'p, P>,
        level: Level,
        gfp: Gfp,
    ) -> Result<Self, AllocError> {
        let (folio, contents) = allocator.requests().alloc_described(gfp)?;
        let frame = folio.into_raw();
        allocator.change(Stat::NrPageTablePages, 1);
        if contents == Contents::Unknown {
            clear_table(allocator.platform(), frame);
        }
        let descriptor = allocator.frames().descriptor(frame);
        descriptor.reset();
        descriptor.set_flags(DescriptorFlags::TABLE);
        descriptor.level.store(level.get(), Ordering::Relaxed);
        Ok(Self { allocator, frame, level })
    }

    pub(super) fn table(&self) -> Table<'p> {
        Table::at(self.allocator.platform(), self.frame, self.level)
    }

    /// Sets every entry to `entry(index)`; none is empty.
    pub(super) fn fill(&self, entry: impl Fn(usize) -> Entry) {
        let table = self.table();
        for index in 0..TABLE_ENTRIES {
            table.store(index, entry(index));
        }
        let descriptor = self.allocator.frames().descriptor(self.frame);
        descriptor.population.store(TABLE_ENTRIES as u16, Ordering::Relaxed);
        if !entry(0).has(EntryFlags::ANON) {
            descriptor.add_flags(DescriptorFlags::MIXED);
        }
    }

    /// Becomes the table below the entry at `index` of `parent`, which is empty or busy.
    pub(super) fn install(self, context: &MmContext, parent: &LockedTable<'_, P>, index: usize) -> Table<'p> {
        self.adopt(context, parent, index);
        parent.fill(index, Entry::table(self.frame));
        let table = self.table();
        core::mem::forget(self);
        table
    }

    /// As [`Self::install`], in the place of a pointer to another table, which it returns.
    pub(super) fn exchange(self, context: &MmContext, parent: &LockedTable<'_, P>, index: usize) -> Entry {
        self.adopt(context, parent, index);
        let old = parent.exchange(index, Entry::table(self.frame));
        core::mem::forget(self);
        old
    }

    fn adopt(&self, context: &MmContext, parent: &LockedTable<'_, P>, index: usize) {
        let descriptor = self.allocator.frames().descriptor(self.frame);
        descriptor.owner.store(context.root().0, Ordering::Relaxed);
        descriptor.word.store(super::place_of(parent.table().frame(), index), Ordering::Relaxed);
        context.add_tables(1);
    }

    /// Hands the table and its leaves to the drain, as if it had been installed and taken out again.
    pub(super) fn abandon(self, context: &MmContext) -> Unmapped {
        context.add_tables(1);
        let unmapped = Unmapped::root(self.frame, self.level);
        core::mem::forget(self);
        unmapped
    }

    /// Becomes the root of an address space, with the kernel's half. There is no other way to a root.
    pub(super) fn into_root(self) -> Frame {
        let (platform, frame) = (self.allocator.platform(), self.frame);
        if let Some(kernel) = platform.kernel_root() {
            let kernel = Table::at(platform, kernel, self.level);
            kernel.copy_to(self.table(), USER_ENTRIES..TABLE_ENTRIES, EntryFlags::NONE);
        }
        self.allocator.frames().descriptor(frame).owner.store(frame.0, Ordering::Relaxed);
        core::mem::forget(self);
        frame
    }
}

impl<P: TablePlatform> Drop for FreshTable<'_, '_, P> {
    fn drop(&mut self) {
        self.allocator.change(Stat::NrPageTablePages, -1);
        self.allocator.frames().descriptor(self.frame).clear_flags();
        // SAFETY: invariant 1: the table was not installed, so nothing else names its frame.
        let folio = unsafe { self.allocator.frames().folio_from_raw(self.frame, Order::FRAME) };
        let freed = self.allocator.free(folio);
        debug_assert_eq!(freed, Ok(()));
    }
}
