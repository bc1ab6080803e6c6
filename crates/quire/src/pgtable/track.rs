//! Notices stores: for write-back, by the soft-dirty bit, and by the mark of a userfaultfd handler.
//!
//! The bit and the mark take the right to store away, so that the next store faults. For the first the fault sets the bit and
//! gives the right back. For the second the fault goes to the handler that set the mark, and only the removal
//! of the mark gives the right back.
//!
//! Source: Linux, `Documentation/admin-guide/mm/soft-dirty.rst` and `userfaultfd.rst` (write protect
//! notifications).

use super::PageTables;
use crate::addr::VirtRange;
use crate::arch::{Entry, EntryFlags};
use crate::error::MapError;
use crate::platform::TablePlatform;
use crate::tlb::FlushBatch;

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Takes the right to store from every leaf in the range, and from nothing else, so that the next store
    /// faults. The caller owes a flush for leaves that had the right. Shared.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub(crate) fn forbid_stores(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<(), MapError> {
        self.update_leaves(range, owed, |leaf| leaf.without(EntryFlags::WRITE), could_store)
    }

    /// Clears the soft-dirty bit of every leaf in the range and takes the right to store from it. The caller
    /// owes a flush for leaves that had the right. Exclusive, until the flush.
    ///
    /// # Errors
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`]; nothing has changed then.
    pub fn clear_soft_dirty(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<(), MapError> {
        let cleared = EntryFlags::SOFT_DIRTY | EntryFlags::WRITE;
        self.update_leaves(range, owed, |leaf| leaf.without(cleared), could_store)
    }

    /// Marks every leaf in the range [`EntryFlags::UFFD_WP`] and takes the right to store from it, but marks
    /// no hole. The caller owes a flush for leaves that had the right. Exclusive, until the flush.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn mark_write_protected(&self, range: VirtRange, owed: &mut FlushBatch) -> Result<(), MapError> {
        self.context.note_marks();
        let mark = |leaf: Entry| leaf.without(EntryFlags::WRITE).with(EntryFlags::UFFD_WP);
        self.update_leaves(range, owed, mark, could_store)
    }

    /// Takes the mark from every leaf in the range. The next store's fault decides whether the page must be
    /// copied, and gives the right to store back. Needs no flush. Shared.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn unmark_write_protected(&self, range: VirtRange) -> Result<(), MapError> {
        let unmark = |leaf: Entry| leaf.without(EntryFlags::UFFD_WP);
        self.update_leaves(range, &mut FlushBatch::new(), unmark, |_, _| false)
    }
}

fn could_store(before: Entry, _size: crate::addr::PageSize) -> bool {
    before.has(EntryFlags::WRITE)
}
