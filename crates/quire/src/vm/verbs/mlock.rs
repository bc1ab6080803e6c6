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
use crate::vm::verbs::change::{AttributeChange, mapped_up_to};
use crate::vm::verbs::populate::Populate;

const LOCKS: VmaFlags = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);

handle! { Mlock of AddressSpace }

impl<P: Platform> Mlock<'_, '_, P> {
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

    pub(in crate::vm) fn munlock(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        self.set_locked(addr, len, LockMode::None).map(|_| ())
    }

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

    pub(in crate::vm) fn munlockall(self) -> Result<(), MmError> {
        let mut space = self.lock();
        space.lock_future = LockMode::None;
        self.lock_everything(space, LockMode::None)
    }

    fn lock_everything(self, space: SpaceGuard<'_, P>, mode: LockMode) -> Result<(), MmError> {
        let all = space.layout.user;
        AttributeChange::of(self.0).change_and_unlock(space, all, |vma| set_lock(vma, mode))
    }

    fn set_locked(self, addr: VirtAddr, len: u64, mode: LockMode) -> Result<VirtRange, MmError> {
        let start = addr.align_down(FRAME_SIZE);
        // Wraps like Linux's arithmetic: lengths close to 2^64 become 0.
        let len = len.wrapping_add(addr.0 - start.0).wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
        let end = start.0.checked_add(len).map(VirtAddr).ok_or(MmError::Invalid)?;
        let range = VirtRange::new(start, end);
        let space = self.lock();
        let stop = mapped_up_to(space.tree.overlapping(range), range);
        if stop > start {
            let mapped = VirtRange::new(start, stop);
            AttributeChange::of(self.0).change_and_unlock(space, mapped, |vma| set_lock(vma, mode))?;
        }
        if stop == range.end { Ok(range) } else { Err(MmError::NoMemory) }
    }
}

/// Locks or unlocks a mapping. Huge pages are never reclaimed, and never count as locked.
fn set_lock(vma: &mut VmaAttributes, mode: LockMode) {
    if vma.huge_size().is_none() {
        vma.flags = vma.flags.without(LOCKS).union(mode.flags());
    }
}
