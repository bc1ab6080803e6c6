//! Markers in the places of leaves whose memory is lost, or will never come.
//!
//! A marker ([`Entry::POISON`]) is not present and not empty: an access faults, no leaf is mapped over it,
//! and it stays until its address is unmapped. `fork` copies it, of shared mappings as well, and `mremap`
//! moves it. Only its table's population counts it. Huge pages get large markers; other large leaves are
//! split first.
#![forbid(unsafe_code)]

use super::PageTables;
use super::lock::same_leaf;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags};
use crate::error::MapError;
use crate::platform::TablePlatform;
use crate::tlb::{MmuGather, Unmapped};

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Replaces the leaf of `size` at `addr`, in an unshared table, by a marker if it is still `expected`
    /// (apart from history); returns whether it was. The leaf goes to the gather. Shared, for a large leaf
    /// exclusive.
    pub fn poison(
        &self,
        addr: VirtAddr,
        size: PageSize,
        expected: Entry,
        gather: &mut MmuGather<'_, '_, P>,
    ) -> bool {
        gather.reserve(self.context);
        let Some((table, index)) = self.slot(addr, size) else { return false };
        let locked = self.lock(table);
        if !same_leaf(locked.load(index), expected) {
            return false;
        }
        let old = locked.mark_lost(index);
        drop(locked);
        self.context.note_lost();
        gather.owe(VirtRange::from_len(addr.align_down(size.bytes()), size.bytes()), size);
        if !old.has(EntryFlags::SPECIAL) {
            gather.add(Unmapped::leaves(old, size, 1));
        }
        true
    }

    /// Puts a marker for a leaf of `size` where nothing is. Shared.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when the entry is not empty, [`MapError::Unaligned`], and as [`Self::prepare`].
    pub(crate) fn poison_empty(&self, addr: VirtAddr, size: PageSize) -> Result<(), MapError> {
        if !addr.is_aligned(size.bytes()) {
            return Err(MapError::Unaligned);
        }
        self.prepare(addr, size)?;
        let (table, index) = self.slot(addr, size).ok_or(MapError::Shared)?;
        let locked = self.lock(table);
        if !locked.all_empty(index, 1) {
            return Err(MapError::Occupied);
        }
        locked.mark_lost(index);
        self.context.note_lost();
        Ok(())
    }

    /// Copies every marker of the range, and no more, to `child`, which maps nothing there. Exclusive on
    /// both.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`]: the child has the markers of a part of the range.
    pub(crate) fn copy_poison(&self, child: &Self, range: VirtRange) -> Result<(), MapError> {
        let mut rest = if self.context.has_lost() { range } else { VirtRange::default() };
        while !rest.is_empty() {
            let step = self.step(rest);
            for index in step.indices().filter(|&index| step.table.load(index).is_poison()) {
                let target = child.ensure(step.range.start, step.table.level())?;
                child.lock(target).mark_lost(index);
            }
            rest.start = step.range.end;
        }
        Ok(())
    }

    /// Counts the markers for leaves of `size` in a range of whole ones. Shared.
    pub(crate) fn count_poison(&self, range: VirtRange, size: PageSize) -> u64 {
        let at = (0..range.len()).step_by(size.bytes() as usize).map(|at| range.start.add(at));
        at.filter(|&addr| self.slot(addr, size).is_some_and(|(table, index)| table.load(index).is_poison()))
            .count() as u64
    }
}
