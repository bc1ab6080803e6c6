//! Splitting a large leaf into a table of smaller ones.

use super::{FreshTable, PageTables};
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::TABLE_ENTRIES;
use crate::page_alloc::CountError;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::FlushBatch;
use crate::tlb::words::Table;

impl<'p, P: Platform> PageTables<'_, 'p, P> {
    /// Splits large leaves until none reaches across `addr`: a 1 GiB leaf into 2 MiB leaves, one of these into 4 KiB
    /// leaves. Counts move with the leaves, exactly. Flushes. Shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; the leaves translate as before then, though one may have been split already.
    pub fn split_at(&self, addr: VirtAddr) -> Result<(), MapError> {
        loop {
            let found = self.lookup(addr);
            match found.leaf_size() {
                Some(size) if !addr.is_aligned(size.bytes()) => self.split(addr, found.level)?,
                _ => return Ok(()),
            }
        }
    }

    /// Splits the leaf for `addr` in its table of `level`, unless somebody else does: the caller looks again.
    pub(super) fn split(&self, addr: VirtAddr, level: Level) -> Result<(), MapError> {
        let Some(table) = self.find(addr, level) else { return Ok(()) };
        let fresh = FreshTable::new(self.allocator, level.below())?;
        while let Err(CountError::Prepare { at, .. }) = self.begin_split(table, addr, &fresh) {
            self.allocator.prepare_counts(at)?;
        }
        let index = table.index(addr);
        if fresh.is_empty() {
            return Ok(());
        }
        // The entry is busy, and ours: nobody changes it until we do.
        let mut owed = FlushBatch::new();
        owed.add(table.extent(addr), level.leaf_size().unwrap_or(PageSize::Size4K));
        owed.flush(self.allocator, self.context);
        fresh.install(self.context, &self.lock(table), index);
        self.allocator.count(Stat::ThpSplitPmd, u64::from(level == Level::PMD));
        Ok(())
    }

    /// Counts the small leaves in the place of the large one, takes that out, and writes them to the new table, which
    /// stays empty when there was no leaf. Nothing has changed when counts must be prepared first.
    fn begin_split(
        &self,
        table: Table<'p>,
        addr: VirtAddr,
        fresh: &FreshTable<'_, 'p, P>,
    ) -> Result<(), CountError> {
        let index = table.index(addr);
        let locked = self.lock(table);
        let seen = locked.load(index);
        let (true, Some(size)) = (seen.is_leaf(table.level()), table.level().leaf_size()) else {
            return Ok(());
        };
        if !seen.has(EntryFlags::SPECIAL) {
            self.move_counts(seen.frame(), size)?;
        }
        // What hardware records until now goes into every small leaf (invariant 3); a CPU that still has the large leaf
        // cached and wants to record more finds the entry gone.
        let leaf = locked.exchange(index, Entry::BUSY);
        drop(locked);
        let step = size.frames() / TABLE_ENTRIES as u64;
        let flags = leaf.flags().without(EntryFlags::LARGE);
        let small = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
        fresh.fill(|at| Entry::leaf(leaf.frame().add(at as u64 * step), small, flags));
        Ok(())
    }

    /// Counts one leaf of `size` as its parts. At no moment is a frame of it without a count.
    fn move_counts(&self, frame: Frame, size: PageSize) -> Result<(), CountError> {
        let mut counter = self.allocator.counter();
        if size == PageSize::Size2M {
            counter.map(FrameRange::folio(frame, size.order()))?;
        } else {
            for part in 0..TABLE_ENTRIES as u64 {
                counter.map_large(frame.add(part * PageSize::Size2M.frames()), PageSize::Size2M);
            }
        }
        counter.unmap_large(frame, size);
        Ok(())
    }
}
