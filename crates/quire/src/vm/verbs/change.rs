//! Changes attributes of the mappings in a range, and checks how much of a range is mapped.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Vma, VmaAttributes};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::Space;
use crate::vm::tree::{VmaList, edit};

handle! { AttributeChange of AddressSpace }

impl<P: Platform> AttributeChange<'_, '_, P> {
    /// Splits large leaves at the ends of the range first. On an error nothing has changed.
    pub(in crate::vm) fn change_range(
        self,
        space: &mut Space,
        range: VirtRange,
        gone: &mut VmaList,
        change: impl FnMut(&mut VmaAttributes),
    ) -> Result<(), MmError> {
        let need = edit::splits(&space.tree, range);
        if need > 0 && space.tree.len() + need > space.mapping_limit {
            return Err(MmError::NoMemory);
        }
        let mut spares = self.memory.spares(need)?;
        let cut = self.cut_small(space, range);
        let done = cut.is_ok() && edit::change(&mut space.tree, range, &mut spares, gone, change);
        self.memory.discard_spares(spares);
        cut?;
        if done { Ok(()) } else { Err(MmError::NoMemory) }
    }

    /// As [`Self::change_range`]; releases the lock and discards what is left over.
    pub(in crate::vm) fn change_and_unlock(
        self,
        mut space: SpaceGuard<'_, P>,
        range: VirtRange,
        change: impl FnMut(&mut VmaAttributes),
    ) -> Result<(), MmError> {
        let mut gone = VmaList::new();
        let changed = self.change_range(&mut space, range, &mut gone, change);
        drop(space);
        self.memory.discard_list(gone);
        changed
    }
}

/// Fails unless every page of the range lies in a mapping.
pub(in crate::vm) fn covers(space: &Space, range: VirtRange) -> Result<(), MmError> {
    all_mapped(space.tree.overlapping(range), range)
}

/// Fails unless every page of a range lies in one of the mappings that overlap it.
pub(super) fn all_mapped<'v>(vmas: impl Iterator<Item = &'v Vma>, range: VirtRange) -> Result<(), MmError> {
    if mapped_up_to(vmas, range) == range.end { Ok(()) } else { Err(MmError::NoMemory) }
}

/// The first address of the range in none of the mappings that overlap it, or the range's end.
pub(super) fn mapped_up_to<'v>(vmas: impl Iterator<Item = &'v Vma>, range: VirtRange) -> VirtAddr {
    let mut at = range.start;
    for vma in vmas {
        if vma.range.start > at {
            break;
        }
        at = vma.range.end.min(range.end);
    }
    at
}
