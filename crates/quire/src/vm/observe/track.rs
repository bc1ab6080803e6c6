//! Noticing stores: what checkpointing (`/proc/PID/clear_refs`) and userfaultfd handlers ask for.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::{MapError, MmError};
use crate::platform::Platform;
use crate::tlb::FlushBatch;
use crate::vm::hugetlb::mapping::check_parts;
use crate::vm::space::mm::Mm;

impl<P: Platform> Mm<'_, P> {
    /// Forgets which of the pages mapped in `len` bytes (rounded up to pages) from `addr` were stored to: from now on each
    /// is soft-dirty again once it is. What 4, written to `/proc/PID/clear_refs`, does for all of an address space.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address, a range that leaves the user half, or one that ends inside a huge page
    /// that is mapped whole; [`MmError::NoMemory`] when a large
    /// leaf would have to be split. Nothing has changed then.
    pub fn clear_soft_dirty(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, owed| self.tables().clear_soft_dirty(range, owed))
    }

    /// Whether the page at `addr` is mapped and was stored to, as far as is known, since [`Self::clear_soft_dirty`] (bit 55 of
    /// `/proc/PID/pagemap`).
    pub fn is_soft_dirty(&self, addr: VirtAddr) -> bool {
        let _space = self.space.read(self.memory.platform());
        self.tables().lookup(addr).entry.has(EntryFlags::PRESENT | EntryFlags::SOFT_DIRTY)
    }

    /// Marks the pages mapped in `len` bytes (rounded up to pages) from `addr` for a handler: a store to one faults with
    /// [`FaultError::Marked`](crate::error::FaultError::Marked) until the mark is taken off, whatever else the verbs do
    /// with it. Unmapping takes the mark along; a child has none. As `UFFDIO_WRITEPROTECT` with `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn write_protect_marked(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, owed| self.tables().mark_write_protected(range, owed))
    }

    /// Takes such marks off. As `UFFDIO_WRITEPROTECT` without `MODE_WP`.
    ///
    /// # Errors
    /// As [`Self::clear_soft_dirty`].
    pub fn remove_write_protect_marks(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, _| self.tables().unmark_write_protected(range))
    }

    fn track(
        &self,
        addr: VirtAddr,
        len: u64,
        verb: impl FnOnce(VirtRange, &mut FlushBatch) -> Result<(), MapError>,
    ) -> Result<(), MmError> {
        let space = self.lock();
        let range = space.layout.range(addr, len).ok_or(MmError::Invalid)?;
        check_parts(&space, range)?;
        self.cut(range)?;
        self.unshare(range)?;
        self.split_to_mark(&space, range)?;
        let mut owed = FlushBatch::new();
        let done = verb(range, &mut owed);
        owed.flush(self.memory.pages(), self.context());
        debug_assert_eq!(done, Ok(()), "the ends of {range:?} were cut before");
        Ok(())
    }
}
