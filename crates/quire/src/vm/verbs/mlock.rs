//! `mlock`, `munlock`, `mlockall`, `munlockall`.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::{FaultError, MmError};
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::mapping::vma::{VmaAttributes, VmaFlags};
use crate::vm::space::mm::{LockMode, Mm, SpaceGuard};
use crate::vm::tree::{VmaList, VmaTree};

const LOCKS: VmaFlags = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);

impl<P: Platform> Mm<'_, P> {
    /// Locks the pages of `len` bytes from `addr`, extended to whole pages, and brings them in (`on_fault`: as they are
    /// touched).
    ///
    /// # Errors
    /// [`MmError::Invalid`] when the end passes the last address; [`MmError::NoMemory`] for a hole, after what is before
    /// it was locked, for pages that cannot be brought in, after everything was locked, and when there is no memory for
    /// mappings; [`MmError::Again`] when there is none for pages, after everything was locked.
    pub fn mlock(&self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), MmError> {
        let range = self.set_locked(addr, len, if on_fault { LockMode::OnFault } else { LockMode::Now })?;
        if on_fault {
            return Ok(());
        }
        self.populate(range).map_err(|error| match error {
            FaultError::OutOfMemory => MmError::Again,
            _ => MmError::NoMemory,
        })
    }

    /// Takes the lock off.
    ///
    /// # Errors
    /// As [`Self::mlock`].
    pub fn munlock(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.set_locked(addr, len, LockMode::None).map(|_| ())
    }

    /// Locks what is mapped (`current`), what will be mapped (`future`), or both. Pages that cannot be brought in are
    /// passed over.
    ///
    /// # Errors
    /// [`MmError::Invalid`] when neither is asked for, [`MmError::NoMemory`].
    pub fn mlockall(&self, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        if !current && !future {
            return Err(MmError::Invalid);
        }
        let mode = if on_fault { LockMode::OnFault } else { LockMode::Now };
        let mut space = self.lock();
        space.lock_future = if future { mode } else { LockMode::None };
        if !current {
            return Ok(());
        }
        self.lock_everything(space, mode)?;
        if mode == LockMode::Now {
            self.populate_everything();
        }
        Ok(())
    }

    /// Brings in what can be brought in.
    fn populate_everything(&self) {
        let mut at = VirtAddr(0);
        loop {
            let space = self.space.read(self.memory.platform());
            let Some(range) = space.tree.find_from(at).map(|vma| vma.range) else { return };
            drop(space);
            let _stopped = self.populate(range);
            at = range.end;
        }
    }

    /// Takes the lock off everything, and off what will be mapped.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn munlockall(&self) -> Result<(), MmError> {
        let mut space = self.lock();
        space.lock_future = LockMode::None;
        self.lock_everything(space, LockMode::None)
    }

    fn lock_everything(&self, mut space: SpaceGuard<'_, P>, mode: LockMode) -> Result<(), MmError> {
        let all = space.layout.user;
        let mut gone = VmaList::new();
        let changed = self.change_range(&mut space, all, &mut gone, |vma| set_lock(vma, mode));
        drop(space);
        self.memory.discard_list(gone);
        changed
    }

    fn set_locked(&self, addr: VirtAddr, len: u64, mode: LockMode) -> Result<VirtRange, MmError> {
        let start = addr.align_down(FRAME_SIZE);
        // Wraps as Linux's arithmetic does: lengths close to 2^64 come out as none.
        let len = len.wrapping_add(addr.0 - start.0).wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
        let end = start.0.checked_add(len).map(VirtAddr).ok_or(MmError::Invalid)?;
        let range = VirtRange::new(start, end);
        let mut space = self.lock();
        let stop = mapped_up_to(&space.tree, range);
        let mut gone = VmaList::new();
        let mut changed = Ok(());
        if stop > start {
            let range = VirtRange::new(start, stop);
            changed = self.change_range(&mut space, range, &mut gone, |vma| set_lock(vma, mode));
        }
        drop(space);
        self.memory.discard_list(gone);
        changed?;
        if stop == range.end { Ok(range) } else { Err(MmError::NoMemory) }
    }
}

/// Locks a mapping or not. Huge pages are never given up, and never count as locked.
fn set_lock(vma: &mut VmaAttributes, mode: LockMode) {
    if vma.huge_size().is_none() {
        vma.flags = vma.flags.without(LOCKS).union(mode.flags());
    }
}

/// The first address of the range at which nothing is mapped, or its end.
pub(in crate::vm) fn mapped_up_to(tree: &VmaTree, range: VirtRange) -> VirtAddr {
    let mut at = range.start;
    for vma in tree.overlapping(range) {
        if vma.range.start > at {
            break;
        }
        at = vma.range.end.min(range.end);
    }
    at
}
