//! `munmap`: removes mappings and unmaps their pages (`docs/flows/munmap.md`).
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::pgtable::RangeEnds;
use crate::platform::Platform;
use crate::vm::gigantic::pool::PoolClears;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::Space;
use crate::vm::tree::{VmaList, edit};
use crate::vm::userfault::changes::Notices;

handle! { Munmap of AddressSpace }

impl<'m, P: Platform> Munmap<'_, 'm, P> {
    pub(in crate::vm) fn munmap(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        let mut space = self.lock();
        let range =
            space.layout.range(addr, len).filter(|range| !range.is_empty()).ok_or(MmError::Invalid)?;
        let gone = self.unmap_beside_faults(&mut space, range)?;
        Notices::of(self.0).announce_unmapped(&gone);
        drop(space);
        Notices::of(self.0).discard_unmapped(gone);
        Ok(())
    }

    /// Removes the mappings of a range from the tree, and their leaves from the page table. The caller
    /// discards the list after it has released the lock. On an error nothing has changed.
    pub(in crate::vm) fn unmap_range(self, space: &mut Space, range: VirtRange) -> Result<VmaList, MmError> {
        let Some((gone, cut)) = self.take_out(space, range)? else { return Ok(VmaList::new()) };
        self.zap(gone.iter(), range, space.tree.hole_around(range, space.layout.user), cut);
        Ok(gone)
    }

    /// As [`Self::unmap_range`]. Faults elsewhere in the address space go on as soon as the tree no longer
    /// has the mappings: no leaf of another mapping is in the hole, so no fault reaches a table that leaves.
    pub(in crate::vm) fn unmap_beside_faults(
        self,
        space: &mut SpaceGuard<'_, P>,
        range: VirtRange,
    ) -> Result<VmaList, MmError> {
        let Some((gone, cut)) = self.take_out(space, range)? else { return Ok(VmaList::new()) };
        let hole = space.tree.hole_around(range, space.layout.user);
        self.admit_faults(space, || hole);
        self.zap(gone.iter(), range, hole, cut);
        Ok(gone)
    }

    /// Removes the mappings of a range from the tree, after the ends of the range were cut; `None` if there
    /// are none. The caller unmaps their leaves.
    #[inline(always)]
    fn take_out(
        self,
        space: &mut Space,
        range: VirtRange,
    ) -> Result<Option<(VmaList, RangeEnds<'m>)>, MmError> {
        let Some(first) = space.tree.first_in(range) else { return Ok(None) };
        check_ends(space, range)?;
        // A hole in the middle of one mapping makes one mapping more.
        let hole = first.range.start < range.start && range.end < first.range.end;
        if hole && space.tree.len() >= space.mapping_limit {
            return Err(MmError::NoMemory);
        }
        let mut spares = self.memory.spares(edit::splits(&space.tree, range))?;
        let cut = match self.cut(range) {
            Ok(cut) => cut,
            Err(error) => {
                self.memory.discard_spares(spares);
                return Err(error);
            }
        };
        let gone = edit::carve(&mut space.tree, range, &mut spares).ok_or(MmError::NoMemory);
        self.memory.discard_spares(spares);
        let gone = gone?;
        if space.huge {
            PoolClears::of(self.memory).cancel(self.body(), range);
            gone.iter().for_each(|vma| Reservations::of(self.0).end_reservations(vma));
        }
        Ok(Some((gone, cut)))
    }
}
