//! `mprotect`.

use quire::error::MmError;

use super::vma::{Locked, PAGE, Prot};
use super::{Family, SpaceId};

impl Family {
    /// `mprotect`: the mapped part up to the first hole changes, then the hole is reported.
    ///
    /// # Errors
    /// `EINVAL` for an unaligned address, `ENOMEM` for a hole or an end past the last address.
    pub fn mprotect(&mut self, id: SpaceId, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        if !addr.is_multiple_of(PAGE) {
            return Err(MmError::Invalid);
        }
        if len == 0 {
            return Ok(());
        }
        let end = addr.wrapping_add(len.wrapping_add(PAGE - 1) & !(PAGE - 1));
        if end <= addr {
            return Err(MmError::NoMemory);
        }
        let hole = self.space(id).first_hole(addr, end);
        let end = hole.unwrap_or(end);
        if end > addr {
            self.protect_mapped(id, addr, end, prot);
        }
        if hole.is_some() { Err(MmError::NoMemory) } else { Ok(()) }
    }

    fn protect_mapped(&mut self, id: SpaceId, start: u64, end: u64, prot: Prot) {
        let mut made_private = Vec::new();
        for vma in self.space_mut(id).inside(start, end) {
            // A locked private mapping that becomes writable gets its own pages at once, so that a store cannot wait.
            let copies = vma.locked == Locked::Now && vma.is_private() && !vma.prot.writes() && prot.writes();
            if copies && vma.prot != prot {
                made_private.push((vma.start, vma.end));
            }
            vma.protect(prot);
        }
        for (from, to) in made_private {
            let _ = self.populate(id, from, to);
        }
    }
}
