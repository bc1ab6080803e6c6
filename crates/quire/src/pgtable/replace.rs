//! Gives one leaf another frame, or more bits.

use super::lock::same_leaf;
use super::{Lookup, PageTables};
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::error::MapError;
use crate::page_alloc::{CountError, Origin};
use crate::platform::TablePlatform;
use crate::tlb::{MmuGather, RssChange, Unmapped, UnmappedPage, flush_page, flush_page_here};

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Replaces the leaf at `addr` by `new` of the same size, if it is still `expected` (apart from history);
    /// returns whether it was. In between the entry is busy and every CPU is flushed, so that no two CPUs see
    /// different frames. The old leaf goes to the gather. Shared.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]; nothing has changed then.
    ///
    /// # Safety
    /// As for [`Self::map`], for the frames of the new leaf.
    pub unsafe fn replace(
        &self,
        addr: VirtAddr,
        size: PageSize,
        expected: Entry,
        new: Entry,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<bool, MapError> {
        let Some((table, index)) = self.slot(addr, size) else { return Ok(false) };
        gather.reserve(self.context);
        let old = loop {
            let locked = self.lock(table);
            if !same_leaf(locked.load(index), expected) {
                return Ok(false);
            }
            match self.count_leaf(new, size) {
                Ok(()) => break locked.make_busy(index),
                Err(CountError::Prepare { at, .. }) => {
                    drop(locked);
                    self.allocator.counts().prepare_counts(at)?;
                }
            }
        };
        gather.owe(VirtRange::from_len(addr.align_down(size.bytes()), size.bytes()), size);
        if !old.has(EntryFlags::SPECIAL) {
            gather.add(Unmapped::leaves(old, size, 1));
        }
        gather.flush();
        self.lock(table).fill_busy(index, new);
        Ok(true)
    }

    /// Replaces the 4 KiB leaf that a lookup found, under the same hold of the address-space lock, by one onto
    /// a frame that was just allocated, whose origin it sets. Counts the old leaf down, and returns the change
    /// of resident memory that its end makes; `None` if the leaf has changed. As [`Self::replace`] otherwise.
    ///
    /// # Errors
    /// As [`Self::replace`].
    ///
    /// # Safety
    /// As for [`Self::map`], for the new frame.
    #[inline(always)]
    pub(crate) unsafe fn replace_page(
        &self,
        found: &Lookup,
        addr: VirtAddr,
        (frame, origin): (Frame, Origin),
        flags: EntryFlags,
    ) -> Result<Option<RssChange>, MapError> {
        let Some(table) = self.table_of(found) else { return Ok(None) };
        let (new, index) = (Entry::leaf(frame, PageSize::Size4K, flags), table.index(addr));
        let mut locked = self.lock(table);
        if !same_leaf(locked.load(index), found.entry) {
            return Ok(None);
        }
        if self.allocator.counts().map_new(frame, origin).is_err() {
            drop(locked);
            // Its block needs a table of origins.
            self.allocator.set_origin(FrameRange::new(frame, 1), origin)?;
            locked = self.lock(table);
            if !same_leaf(locked.load(index), found.entry) {
                return Ok(None);
            }
            self.allocator.counts().map_new(frame, origin).map_err(|_| MapError::OutOfMemory)?;
        }
        let replaced = UnmappedPage::new(self.allocator, locked.make_busy(index));
        // Where no other CPU is waited for, the lock is kept.
        if flush_page_here(self.allocator, self.context, addr) {
            locked.fill_busy(index, new);
            drop(locked);
        } else {
            drop(locked);
            flush_page(self.allocator, self.context, addr);
            self.lock(table).fill_busy(index, new);
        }
        // SAFETY: invariant 2: the leaf was just flushed.
        Ok(Some(unsafe { replaced.release(self.allocator) }))
    }

    /// Sets more bits in the leaf of `size` at `addr`, if it is still `expected` (apart from history);
    /// returns whether it was. Needs no flush: a CPU that has the old leaf cached faults once more at worst.
    /// Shared.
    pub fn upgrade(&self, addr: VirtAddr, size: PageSize, expected: Entry, more: EntryFlags) -> bool {
        let Some((table, index)) = self.slot(addr, size) else { return false };
        let locked = self.lock(table);
        let seen = locked.load(index);
        let same = same_leaf(seen, expected);
        if same {
            locked.update(index, seen, |leaf| leaf.with(more));
        }
        same
    }

    pub(super) fn count_leaf(&self, leaf: Entry, size: PageSize) -> Result<(), CountError> {
        if leaf.has(EntryFlags::SPECIAL) {
            return Ok(());
        }
        let counts = self.allocator.counts();
        match size {
            PageSize::Size4K => counts.counter().map(FrameRange::new(leaf.frame(), 1)),
            PageSize::Size2M | PageSize::Size1G => counts.counter().map_leaf(leaf.frame(), size),
        }
    }
}
