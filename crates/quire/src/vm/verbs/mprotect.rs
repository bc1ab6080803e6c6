//! `mprotect`: changes what accesses may do.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::mapping::vma::{Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::limits::is_data;
use crate::vm::space::state::Space;
use crate::vm::tree::{VmaList, VmaTree};
use crate::vm::verbs::change::AttributeChange;
use crate::vm::verbs::populate::Populate;

handle! { Mprotect of AddressSpace }

impl<P: Platform> Mprotect<'_, '_, P> {
    pub(in crate::vm) fn mprotect(self, addr: VirtAddr, len: u64, prot: Protection) -> Result<(), MmError> {
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        if len == 0 {
            return Ok(());
        }
        // Addresses behind the last user address count as a hole.
        let end = VirtAddr(len).align_up(FRAME_SIZE).and_then(|len| addr.0.checked_add(len.0));
        let mut rest = VirtRange::new(addr, VirtAddr(end.ok_or(MmError::NoMemory)?));
        loop {
            let (changed, outcome) = self.protect_part(rest, prot)?;
            if changed == rest.end || outcome.is_err() {
                return outcome;
            }
            rest.start = changed;
        }
    }

    /// Changes the range up to the first mapping that cannot be changed, or until [`COPIES`] mappings are due
    /// for copying. Returns where it stopped, and the error if a mapping or hole stopped it.
    fn protect_part(
        self,
        range: VirtRange,
        prot: Protection,
    ) -> Result<(VirtAddr, Result<(), MmError>), MmError> {
        let mut space = PoolFaults::of(self.0).lock_complete(range);
        let (stop, outcome) = allowed_up_to(&space.tree, range, prot);
        let allowed = VirtRange::new(range.start, stop);
        if allowed.is_empty() {
            return Ok((stop, outcome));
        }
        check_data(&space, allowed, prot)?;
        check_ends(&space, allowed)?;
        let mut due = None;
        let end = copies_due(&space.tree, allowed, prot, &mut due);
        let part = VirtRange::new(range.start, end);
        let mut gone = VmaList::new();
        let changed = self.unshare(part).and_then(|()| {
            let set = |vma: &mut VmaAttributes| vma.protect(prot);
            AttributeChange::of(self.0).change_range(&mut space, part, &mut gone, set)
        });
        if changed.is_ok() {
            self.admit_faults(&mut space, || self.reach_of_faults(part));
            self.protect_leaves(&space, part);
        }
        drop(space);
        self.memory.discard_list(gone);
        changed?;
        for range in due.iter().flatten().copied().filter(|range| !range.is_empty()) {
            // As in Linux, a locked private mapping gets its pages when it becomes writable: no store waits.
            let _stopped = Populate::of(self.0).populate(range);
        }
        Ok((end, if end == stop { outcome } else { Ok(()) }))
    }
}

/// How far the range is mapped without a hole and allows the protection; the error if not to its end.
fn allowed_up_to(tree: &VmaTree, range: VirtRange, prot: Protection) -> (VirtAddr, Result<(), MmError>) {
    let mut at = range.start;
    for vma in tree.overlapping(range) {
        if vma.range.start > at {
            break;
        }
        if !vma.attributes.may.contains(prot) {
            return (at, Err(MmError::Access));
        }
        at = vma.range.end.min(range.end);
    }
    (at, if at == range.end { Ok(()) } else { Err(MmError::NoMemory) })
}

/// Checks the limit of data, if parts of the range become data.
fn check_data(space: &Space, range: VirtRange, prot: Protection) -> Result<(), MmError> {
    if !prot.contains(Protection::WRITE) {
        return Ok(());
    }
    let becomes = |vma: &&Vma| {
        let stack = vma.attributes.flags.contains(VmaFlags::GROWS_DOWN);
        vma.attributes.is_private() && !stack && !is_data(&vma.attributes)
    };
    let parts = space.tree.overlapping(range).filter(becomes);
    space.check_data(parts.map(|vma| vma.range.intersect(range).len()).sum())
}

/// The most mappings in one part of a call whose pages are copied ahead of the first store.
const COPIES: usize = 16;

/// Finds the parts of the range that are locked private mappings and become writable (Linux:
/// `mprotect_fixup`), up to [`COPIES`], if there is one. Returns where the next such part starts or the range
/// ends.
fn copies_due(
    tree: &VmaTree,
    range: VirtRange,
    prot: Protection,
    due: &mut Option<[VirtRange; COPIES]>,
) -> VirtAddr {
    if !prot.contains(Protection::WRITE) {
        return range.end;
    }
    let is_due = |vma: &&Vma| {
        let vma = &vma.attributes;
        let locked = vma.flags.contains(VmaFlags::LOCKED) && !vma.flags.contains(VmaFlags::LOCK_ON_FAULT);
        locked && !vma.protection.contains(Protection::WRITE) && vma.is_private()
    };
    for (count, vma) in tree.overlapping(range).filter(is_due).enumerate() {
        if count == COPIES {
            return vma.range.start;
        }
        due.get_or_insert_default()[count] = vma.range.intersect(range);
    }
    range.end
}
