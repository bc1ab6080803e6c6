//! Changes to the attributes of the mappings in a range, and how much of a range is mapped.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::VmaAttributes;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::Space;
use crate::vm::tree::{VmaList, VmaTree, edit};

handle! {
    /// Changes attributes of the mappings in a range.
    AttributeChange of AddressSpace
}

impl<P: Platform> AttributeChange<'_, '_, P> {
    /// Changes attributes of the mappings in a range. Large leaves are cut at its ends. On an error nothing
    /// has changed.
    pub(in crate::vm) fn change_range(
        self,
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

/// Whether every page of the range is mapped.
pub(in crate::vm) fn covers(space: &Space, range: VirtRange) -> Result<(), MmError> {
    let user = range.end <= space.layout.user.end;
    if user && mapped_up_to(&space.tree, range) == range.end { Ok(()) } else { Err(MmError::NoMemory) }
}

/// The first address of the range at which nothing is mapped, or its end.
pub(in crate::vm) fn mapped_up_to(tree: &VmaTree, range: VirtRange) -> VirtAddr {
    let mut at = range.start;
    for vma in tree.overlapping(range) {
        if vma.range.start > at {
            break;
        }
        at = vma.range.end.min(range.end);
    }
    at
}
