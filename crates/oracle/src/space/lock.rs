//! `mlock`, `munlock`, `mlockall`, `munlockall`, and populating pages before their first use.

use quire::error::{FaultError, MmError};

use super::vma::{Locked, PAGE};
use super::{Family, SpaceId};

impl Family {
    /// Populates the pages of `start..end`, up to the first that cannot be: makes those of writable private
    /// mappings private at once, and skips those locked on fault.
    ///
    /// # Errors
    /// Why it stopped: [`FaultError::NotMapped`] at a hole, [`FaultError::Protection`] where nothing is allowed,
    /// [`FaultError::BeyondEnd`].
    pub(super) fn populate(&mut self, id: SpaceId, start: u64, end: u64) -> Result<(), FaultError> {
        let mut at = start;
        while at < end {
            let vma = *self.space(id).vma_at(at).ok_or(FaultError::NotMapped)?;
            if vma.locked == Locked::OnFault {
                at = vma.end;
                continue;
            }
            if !vma.prot.reads() {
                return Err(FaultError::Protection);
            }
            let write = vma.is_private() && vma.prot.writes();
            at = self.bring_in_mapped(id, at, end.min(vma.end), write)?;
        }
        Ok(())
    }

    /// Populates the pages of `start..end`, which one mapping holds; returns where it ended.
    pub(super) fn bring_in_mapped(
        &mut self,
        id: SpaceId,
        start: u64,
        end: u64,
        write: bool,
    ) -> Result<u64, FaultError> {
        let vma = *self.space(id).vma_at(start).ok_or(FaultError::NotMapped)?;
        (start..end).step_by(PAGE as usize).try_for_each(|at| self.bring_in(id, &vma, at, write))?;
        Ok(end)
    }

    /// `mlock` (`mlock2` with `MLOCK_ONFAULT`): locks the mapped memory up to the first hole, then reports
    /// the hole; then populates pages, and reports those that it cannot.
    ///
    /// # Errors
    /// `EINVAL` for an end past the last address, `ENOMEM` for a hole, for pages that allow no access or lie behind
    /// the end of a file.
    pub fn mlock(&mut self, id: SpaceId, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        let locked = if on_fault { Locked::OnFault } else { Locked::Now };
        let (start, end) = self.set_locked(id, addr, len, locked)?;
        if on_fault {
            return Ok(());
        }
        self.populate(id, start, end).map_err(|_| MmError::NoMemory)
    }

    /// `munlock`.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, as [`Self::mlock`].
    pub fn munlock(&mut self, id: SpaceId, addr: u64, len: u64) -> Result<(), MmError> {
        self.set_locked(id, addr, len, Locked::No).map(drop)
    }

    fn set_locked(
        &mut self,
        id: SpaceId,
        addr: u64,
        len: u64,
        locked: Locked,
    ) -> Result<(u64, u64), MmError> {
        let start = addr & !(PAGE - 1);
        let len = len.wrapping_add(addr - start).wrapping_add(PAGE - 1) & !(PAGE - 1);
        let end = start.wrapping_add(len);
        if end < start {
            return Err(MmError::Invalid);
        }
        let hole = self.space(id).first_hole(start, end);
        let stop = hole.unwrap_or(end);
        if stop > start {
            self.space_mut(id).inside(start, stop).iter_mut().for_each(|vma| vma.locked = locked);
        }
        if hole.is_some() { Err(MmError::NoMemory) } else { Ok((start, end)) }
    }

    /// `mlockall`: `current` locks current mappings, `future` later ones. At least one must be given.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn mlockall(
        &mut self,
        id: SpaceId,
        current: bool,
        future: bool,
        on_fault: bool,
    ) -> Result<(), MmError> {
        if !current && !future {
            return Err(MmError::Invalid);
        }
        let locked = if on_fault { Locked::OnFault } else { Locked::Now };
        let space = self.space_mut(id);
        space.lock_future = if future { locked } else { Locked::No };
        if !current {
            return Ok(());
        }
        space.vmas.iter_mut().for_each(|vma| vma.locked = locked);
        if !on_fault {
            for vma in self.space(id).vmas.clone() {
                // Pages that cannot be populated are skipped.
                let _ = self.populate(id, vma.start, vma.end);
            }
        }
        Ok(())
    }

    /// `munlockall`.
    pub fn munlockall(&mut self, id: SpaceId) {
        let space = self.space_mut(id);
        space.lock_future = Locked::No;
        space.vmas.iter_mut().for_each(|vma| vma.locked = Locked::No);
    }
}
