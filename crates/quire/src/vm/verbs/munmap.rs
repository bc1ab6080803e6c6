//! `munmap`: takes mappings and their pages away. The flow is told in `docs/flows/munmap.md`.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::platform::Platform;
use crate::tlb::MmuGather;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::Counted;
use crate::vm::space::state::Space;
use crate::vm::tree::{VmaList, VmaTree, edit};
use crate::vm::userfault::changes::Notices;

handle! {
    /// `munmap`.
    Munmap of AddressSpace
}

impl<'m, P: Platform> Munmap<'_, 'm, P> {
    /// See [`Mm::munmap`](crate::vm::Mm::munmap).
    pub(in crate::vm) fn munmap(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        let mut gather = self.gather();
        let mut space = self.lock();
        let range =
            space.layout.range(addr, len).filter(|range| !range.is_empty()).ok_or(MmError::Invalid)?;
        let gone = self.unmap_into(&mut space, range, &mut gather)?;
        Notices::of(self.0).announce_unmapped(&gone);
        // No CPU reaches what was unmapped any more: it is counted down while other threads have the lock.
        gather.flush();
        drop(space);
        self.add_rss(gather.finish(), Counted::File);
        Notices::of(self.0).discard_unmapped(gone);
        Ok(())
    }

    /// Takes the mappings of a range out of the tree and everything they map out of the page table. The
    /// caller discards the list once it has given the lock back. On an error nothing has changed.
    pub(in crate::vm) fn unmap_range(self, space: &mut Space, range: VirtRange) -> Result<VmaList, MmError> {
        let mut gather = self.gather();
        let gone = self.unmap_into(space, range, &mut gather)?;
        self.add_rss(gather.finish(), Counted::File);
        Ok(gone)
    }

    /// As [`Self::unmap_range`]. Where all of the range is private anonymous memory, what it mapped is left
    /// in the gather; what others find by its file, or in a pool, is counted down at once.
    fn unmap_into(
        self,
        space: &mut Space,
        range: VirtRange,
        gather: &mut MmuGather<'_, 'm, P>,
    ) -> Result<VmaList, MmError> {
        let Some(first) = space.tree.first_in(range) else { return Ok(VmaList::new()) };
        check_ends(space, range)?;
        // A hole in the middle of one mapping leaves one more than there were.
        let hole = first.range.start < range.start && range.end < first.range.end;
        if hole && space.tree.len() >= space.mapping_limit {
            return Err(MmError::NoMemory);
        }
        let mut spares = self.memory.spares(edit::splits(&space.tree, range))?;
        if let Err(error) = self.cut(range) {
            self.memory.discard_spares(spares);
            return Err(error);
        }
        let gone = edit::carve(&mut space.tree, range, &mut spares).ok_or(MmError::NoMemory);
        self.memory.discard_spares(spares);
        let gone = gone?;
        if space.huge {
            gone.iter().for_each(|vma| Reservations::of(self.0).end_reservations(vma));
        }
        let limits = free_around(&space.tree, range, space.layout.user);
        if gone.iter().all(|vma| vma.attributes.is_anonymous()) {
            self.zap_anonymous(hull(&gone), range, limits, gather);
        } else {
            self.zap(gone.iter(), range, limits);
        }
        Ok(gone)
    }
}

/// From the first mapping's start to the last one's end.
fn hull(gone: &VmaList) -> VirtRange {
    let ends = |hull: VirtRange, vma: &Vma| VirtRange::new(hull.start, vma.range.end);
    let mut vmas = gone.iter();
    vmas.next().map_or_else(VirtRange::default, |first| vmas.fold(first.range, ends))
}

/// The addresses around a range, in which nothing is mapped, that are free as well.
fn free_around(tree: &VmaTree, range: VirtRange, user: VirtRange) -> VirtRange {
    let below = tree.find_before(range.start).map_or(user.start, |vma| vma.range.end);
    let above = tree.find_from(range.end).map_or(user.end, |vma| vma.range.start);
    VirtRange::new(below, above)
}
