//! `mlock`, `munlock`, `mlockall`, `munlockall`.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::{FaultError, MmError};
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::LockMode;
use crate::vm::tree::VmaList;
use crate::vm::verbs::change::{AttributeChange, mapped_up_to};
use crate::vm::verbs::populate::Populate;

const LOCKS: VmaFlags = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);

handle! {
    /// `mlock`, `munlock`, `mlockall`, `munlockall`.
    Mlock of AddressSpace
}

impl<P: Platform> Mlock<'_, '_, P> {
    /// See [`Mm::mlock`](crate::vm::Mm::mlock).
    pub(in crate::vm) fn mlock(self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), MmError> {
        let range = self.set_locked(addr, len, if on_fault { LockMode::OnFault } else { LockMode::Now })?;
        if on_fault {
            return Ok(());
        }
        Populate::of(self.0).populate(range).map_err(|error| match error {
            FaultError::OutOfMemory => MmError::Again,
            _ => MmError::NoMemory,
        })
    }

    /// See [`Mm::munlock`](crate::vm::Mm::munlock).
    pub(in crate::vm) fn munlock(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.set_locked(addr, len, LockMode::None).map(|_| ())
    }

    /// See [`Mm::mlockall`](crate::vm::Mm::mlockall).
    pub(in crate::vm) fn mlockall(self, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
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
    fn populate_everything(self) {
        let mut at = VirtAddr(0);
        loop {
            let space = self.space.read(self.memory.platform());
            let Some(range) = space.tree.find_from(at).map(|vma| vma.range) else { return };
            drop(space);
            let _stopped = Populate::of(self.0).populate(range);
            at = range.end;
        }
    }

    /// See [`Mm::munlockall`](crate::vm::Mm::munlockall).
    pub(in crate::vm) fn munlockall(self) -> Result<(), MmError> {
        let mut space = self.lock();
        space.lock_future = LockMode::None;
        self.lock_everything(space, LockMode::None)
    }

    fn lock_everything(self, mut space: SpaceGuard<'_, P>, mode: LockMode) -> Result<(), MmError> {
        let all = space.layout.user;
        let mut gone = VmaList::new();
        let changed =
            AttributeChange::of(self.0).change_range(&mut space, all, &mut gone, |vma| set_lock(vma, mode));
        drop(space);
        self.memory.discard_list(gone);
        changed
    }

    fn set_locked(self, addr: VirtAddr, len: u64, mode: LockMode) -> Result<VirtRange, MmError> {
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
            changed = AttributeChange::of(self.0)
                .change_range(&mut space, range, &mut gone, |vma| set_lock(vma, mode));
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
