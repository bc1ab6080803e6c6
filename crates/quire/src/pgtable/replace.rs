//! Gives one leaf another frame, or more bits.

use super::lock::same_leaf;
use super::{Lookup, PageTables};
use crate::addr::{Frame, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::error::MapError;
use crate::page_alloc::CountError;
use crate::platform::TablePlatform;
use crate::tlb::words::Table;
use crate::tlb::{MmuGather, Unmapped};

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
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
        self.replace_at((table, index), addr, size, expected, gather, || {
            self.count_leaf(new, size).map(|()| new)
        })
    }

    /// Replaces the 4 KiB leaf that a lookup found, under the same hold of the address-space lock, by one onto
    /// a frame that was just allocated. As [`Self::replace`] otherwise. Shared.
    ///
    /// # Errors
    /// As [`Self::replace`].
    ///
    /// # Safety
    /// As for [`Self::map`], for the new frame.
    // Inlined, it would make the caller copy its gather.
    #[inline(never)]
    pub(crate) unsafe fn replace_page(
        &self,
        found: &Lookup,
        addr: VirtAddr,
        frame: Frame,
        flags: EntryFlags,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> Result<bool, MapError> {
        let Some(table) = self.table_of(found) else { return Ok(false) };
        let new = Entry::leaf(frame, PageSize::Size4K, flags);
        let count = || self.allocator.counts().map_page(frame, None).map(|()| new);
        self.replace_at((table, table.index(addr)), addr, PageSize::Size4K, found.entry, gather, count)
    }

    /// [`Self::replace`] of the leaf at an index of a table; `count` counts the new leaf and returns it.
    #[inline(always)]
    fn replace_at(
        &self,
        (table, index): (Table<'p>, usize),
        addr: VirtAddr,
        size: PageSize,
        expected: Entry,
        gather: &mut MmuGather<'_, '_, P>,
        count: impl Fn() -> Result<Entry, CountError>,
    ) -> Result<bool, MapError> {
        gather.make_room();
        let (old, new) = loop {
            let locked = self.lock(table);
            if !same_leaf(locked.load(index), expected) {
                return Ok(false);
            }
            match count() {
                Ok(new) => break (locked.exchange(index, Entry::BUSY), new),
                Err(CountError::Prepare { at, .. }) => {
                    drop(locked);
                    self.allocator.counts().prepare_counts(at)?;
                }
            }
        };
        gather.owe(VirtRange::from_len(addr.align_down(size.bytes()), size.bytes()), size);
        if !old.has(EntryFlags::SPECIAL) {
            gather.add(Unmapped::leaves(old, size, 1, old.has(EntryFlags::DIRTY)));
        }
        gather.flush();
        self.lock(table).fill(index, new);
        Ok(true)
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
            PageSize::Size4K => counts.map_page(leaf.frame(), None),
            PageSize::Size2M | PageSize::Size1G => counts.counter().map_leaf(leaf.frame(), size),
        }
    }
}
