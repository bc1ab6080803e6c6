//! `mprotect`: changes what accesses may do.
#![forbid(unsafe_code)]

use super::edit;
use super::hugetlb::check_ends;
use super::mm::{Mm, Space};
use super::tree::{VmaList, VmaTree};
use super::vma::{VmaAttributes, VmaFlags};
use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;

impl<P: Platform> Mm<'_, P> {
    /// Changes the protection of `len` bytes (rounded up to pages) from `addr`.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an end inside a huge page; [`MmError::NoMemory`] for a hole, after everything before it was
    /// changed, or without any change when there is no memory; [`MmError::Access`] for a mapping that may not be
    /// accessed like that, after everything before it was changed.
    pub fn mprotect(&self, addr: VirtAddr, len: u64, prot: Protection) -> Result<(), MmError> {
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        if len == 0 {
            return Ok(());
        }
        let mut space = self.lock();
        // What passes the last user address is a hole like any other.
        let end = VirtAddr(len).align_up(FRAME_SIZE).and_then(|len| addr.0.checked_add(len.0));
        let range = VirtRange::new(addr, VirtAddr(end.ok_or(MmError::NoMemory)?));
        let (stop, outcome) = allowed_up_to(&space.tree, range, prot);
        let range = VirtRange::new(range.start, stop);
        if range.is_empty() {
            return outcome;
        }
        check_ends(&space, range)?;
        let mut gone = VmaList::new();
        let due = copies_due(&space.tree, range, prot);
        let changed = self.protect_range(&mut space, range, prot, &mut gone);
        drop(space);
        self.memory.discard_list(gone);
        changed?;
        for range in due.into_iter().filter(|range| !range.is_empty()) {
            // As Linux: a locked private mapping that becomes writable gets its pages now, so that no store waits.
            let _stopped = self.populate(range);
        }
        outcome
    }

    fn protect_range(
        &self,
        space: &mut Space,
        range: VirtRange,
        prot: Protection,
        gone: &mut VmaList,
    ) -> Result<(), MmError> {
        self.unshare(range)?;
        self.change_range(space, range, gone, |vma| vma.protection = prot)?;
        self.protect_leaves(space, range);
        Ok(())
    }

    /// Changes attributes of the mappings in a range. Large leaves are cut at its ends. On an error nothing has changed.
    pub(super) fn change_range(
        &self,
        space: &mut Space,
        range: VirtRange,
        gone: &mut VmaList,
        change: impl FnMut(&mut VmaAttributes),
    ) -> Result<(), MmError> {
        let need = edit::splits(&space.tree, range);
        if space.tree.len() + need > space.mapping_limit {
            return Err(MmError::NoMemory);
        }
        let mut spares = self.memory.spares(need)?;
        let cut = self.cut_small(space, range);
        let done = cut.is_ok() && edit::change(&mut space.tree, range, &mut spares, gone, change);
        self.memory.discard_spares(spares);
        cut?;
        if done { Ok(()) } else { Err(MmError::NoMemory) }
    }
}

/// How far the range is mapped without a hole and allows the protection, and what is reported at its end.
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

/// Mappings whose pages one call copies ahead of the first store; those of more mappings come with it.
const COPIES: usize = 16;

/// The parts of the range that are locked private mappings and become writable (Linux: `mprotect_fixup`).
fn copies_due(tree: &VmaTree, range: VirtRange, prot: Protection) -> [VirtRange; COPIES] {
    let due = tree.overlapping(range).filter(|vma| {
        let vma = &vma.attributes;
        let locked = vma.flags.contains(VmaFlags::LOCKED) && !vma.flags.contains(VmaFlags::LOCK_ON_FAULT);
        let gains = prot.contains(Protection::WRITE) && !vma.protection.contains(Protection::WRITE);
        locked && gains && vma.is_private()
    });
    let mut parts = [VirtRange::default(); COPIES];
    for (part, vma) in parts.iter_mut().zip(due) {
        *part = vma.range.intersect(range);
    }
    parts
}
