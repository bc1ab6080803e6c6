//! Tracks stores: soft-dirty bits (`/proc/PID/clear_refs`) and marks for userfaultfd handlers.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::{MapError, MmError};
use crate::platform::Platform;
use crate::tlb::FlushBatch;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::hugetlb::ends::check_parts;
use crate::vm::observe::view::Observation;
use crate::vm::rmap::block_leaves::split_to_mark;

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::clear_soft_dirty`](crate::vm::Mm::clear_soft_dirty).
    pub(in crate::vm) fn clear_soft_dirty(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, owed| self.tables().clear_soft_dirty(range, owed))
    }

    /// See [`Mm::is_soft_dirty`](crate::vm::Mm::is_soft_dirty).
    pub(in crate::vm) fn is_soft_dirty(self, addr: VirtAddr) -> bool {
        let _space = self.space.read(self.memory.platform());
        self.context().mode().user_range().contains(addr)
            && self.tables().lookup(addr).entry.has(EntryFlags::SOFT_DIRTY)
    }

    /// See [`Mm::write_protect_marked`](crate::vm::Mm::write_protect_marked).
    pub(in crate::vm) fn write_protect_marked(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, owed| self.tables().mark_write_protected(range, owed))
    }

    /// See [`Mm::remove_write_protect_marks`](crate::vm::Mm::remove_write_protect_marks).
    pub(in crate::vm) fn remove_write_protect_marks(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.track(addr, len, |range, _| self.tables().unmark_write_protected(range))
    }

    fn track(
        self,
        addr: VirtAddr,
        len: u64,
        verb: impl FnOnce(VirtRange, &mut FlushBatch) -> Result<(), MapError>,
    ) -> Result<(), MmError> {
        let whole = VirtRange { start: addr, end: VirtAddr(addr.0.saturating_add(len)) };
        let space = PoolFaults::of(self.0).lock_whole(whole);
        let range = space.layout.range(addr, len).ok_or(MmError::Invalid)?;
        check_parts(&space, range)?;
        self.cut(range)?;
        self.unshare(range)?;
        split_to_mark(self.0, &space, range)?;
        let mut owed = FlushBatch::new();
        let done = verb(range, &mut owed);
        owed.flush(self.memory.pages(), self.context());
        debug_assert_eq!(done, Ok(()), "the ends of {range:?} were cut before");
        Ok(())
    }
}
