//! `madvise`.

use quire::error::{FaultError, MmError};

use super::vma::{Backing, Huge, Locked, PAGE, Vma};
use super::{Family, SpaceId};

/// An advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Advice {
    /// `MADV_DONTNEED`: private pages are dropped at once.
    DontNeed,
    /// `MADV_FREE`: private anonymous pages may be dropped until they are written again.
    Free,
    /// `MADV_WILLNEED`.
    WillNeed,
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_POPULATE_READ`.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`.
    PopulateWrite,
}

impl Advice {
    /// Every advice.
    pub const ALL: [Self; 7] = [
        Self::DontNeed,
        Self::Free,
        Self::WillNeed,
        Self::HugePage,
        Self::NoHugePage,
        Self::PopulateRead,
        Self::PopulateWrite,
    ];
}

impl Family {
    /// `madvise`: advises mapped parts one after the other, skips holes and reports them at the end.
    ///
    /// # Errors
    /// `EINVAL` (unaligned; DONTNEED or FREE on locked memory; FREE on memory that is not private anonymous;
    /// a populate that the protection does not allow), `ENOMEM` (a hole), `EFAULT` (a populate after the end
    /// of a file).
    pub fn madvise(&mut self, id: SpaceId, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        let rounded = len.wrapping_add(PAGE - 1) & !(PAGE - 1);
        if !addr.is_multiple_of(PAGE) || len != 0 && rounded == 0 {
            return Err(MmError::Invalid);
        }
        let end = addr.wrapping_add(rounded);
        if end < addr {
            return Err(MmError::Invalid);
        }
        if end == addr {
            return Ok(());
        }
        match advice {
            Advice::PopulateRead => self.populate_all(id, addr, end, false),
            Advice::PopulateWrite => self.populate_all(id, addr, end, true),
            _ => self.advise_mapped(id, addr, end, advice),
        }
    }

    fn advise_mapped(&mut self, id: SpaceId, start: u64, end: u64, advice: Advice) -> Result<(), MmError> {
        let covered = self.space(id).is_covered(start, end);
        let parts: Vec<Vma> = self.space(id).clipped(start, end);
        for part in parts {
            match advice {
                Advice::DontNeed => self.dont_need(id, &part)?,
                Advice::Free => self.free_lazily(id, &part)?,
                Advice::HugePage => self.set_huge(id, &part, Huge::Yes),
                Advice::NoHugePage => self.set_huge(id, &part, Huge::No),
                Advice::WillNeed | Advice::PopulateRead | Advice::PopulateWrite => {}
            }
        }
        if covered { Ok(()) } else { Err(MmError::NoMemory) }
    }

    fn dont_need(&mut self, id: SpaceId, part: &Vma) -> Result<(), MmError> {
        if part.locked != Locked::No {
            return Err(MmError::Invalid);
        }
        self.space_mut(id).forget(part.start, part.end);
        Ok(())
    }

    fn free_lazily(&mut self, id: SpaceId, part: &Vma) -> Result<(), MmError> {
        if part.locked != Locked::No || part.backing != Backing::Anonymous {
            return Err(MmError::Invalid);
        }
        let space = self.space_mut(id);
        for (_, page) in space.pages.range_mut(part.start / PAGE..part.end / PAGE) {
            page.free_lazily();
        }
        Ok(())
    }

    fn set_huge(&mut self, id: SpaceId, part: &Vma, huge: Huge) {
        self.space_mut(id).inside(part.start, part.end).iter_mut().for_each(|vma| vma.huge = huge);
    }

    fn populate_all(&mut self, id: SpaceId, start: u64, end: u64, write: bool) -> Result<(), MmError> {
        let mut at = start;
        while at < end {
            let vma = *self.space(id).vma_at(at).ok_or(MmError::NoMemory)?;
            let allowed = if write { vma.prot.writes() } else { vma.prot.names_read() };
            if !allowed {
                return Err(MmError::Invalid);
            }
            at = self.bring_in_mapped(id, at, end.min(vma.end), write).map_err(|error| match error {
                FaultError::BeyondEnd => MmError::Fault,
                _ => MmError::NoMemory,
            })?;
        }
        Ok(())
    }
}

impl super::Space {
    /// The mappings that share a byte with `start..end`, clipped to it.
    pub(super) fn clipped(&self, start: u64, end: u64) -> Vec<Vma> {
        let mut parts = Vec::new();
        for vma in self.vmas[self.index_above(start)..].iter().take_while(|vma| vma.start < end) {
            let mut part = *vma;
            if part.start < start {
                part = part.split(start);
            }
            if part.end > end {
                part.split(end);
            }
            parts.push(part);
        }
        parts
    }
}
