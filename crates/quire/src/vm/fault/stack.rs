//! Faults below a mapping that grows down.

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::FaultError;
use crate::limits::{FRAME_SIZE, STACK_GUARD_BYTES};
use crate::platform::Platform;
use crate::vm::edit;
use crate::vm::fault::faults::Faults;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::state::Space;
use crate::vm::tree::VmaList;

impl<P: Platform> Faults<'_, '_, P> {
    /// Extends the mapping above `addr` down to it, if it grows down and the guard gap allows it, unless
    /// another CPU did so already. The caller holds no lock.
    pub(super) fn grow_down(self, addr: VirtAddr) -> Result<(), FaultError> {
        let mut space = self.lock();
        if space.tree.find(addr).is_some() {
            return Ok(());
        }
        let stack = growing_range(&space, addr).ok_or(FaultError::NotMapped)?;
        let grown = VirtRange::new(addr.align_down(FRAME_SIZE), stack.end);
        if !space.tree.resize(stack.start, grown) {
            return Err(FaultError::NotMapped);
        }
        // It may now touch another mapping that grows down.
        let mut gone = VmaList::new();
        edit::merge(&mut space.tree, grown, &mut gone);
        drop(space);
        self.memory.discard_list(gone);
        Ok(())
    }
}

/// The mapping that may grow down to `addr`.
fn growing_range(space: &Space, addr: VirtAddr) -> Option<VirtRange> {
    let start = addr.align_down(FRAME_SIZE);
    let stack =
        space.tree.find_from(addr).filter(|vma| vma.attributes.flags.contains(VmaFlags::GROWS_DOWN))?;
    if start < space.layout.lowest || stack.range.end.0 - start.0 > space.stack_limit {
        return None;
    }
    // The gap counts from the mapping below, if that is accessible and no stack itself.
    let near = space.tree.find_before(stack.range.start).is_some_and(|below| {
        let ordinary = !below.attributes.flags.contains(VmaFlags::GROWS_DOWN);
        let accessible = below.attributes.protection != Protection::NONE;
        ordinary && accessible && start.0 - below.range.end.0 < STACK_GUARD_BYTES
    });
    (!near).then_some(stack.range)
}
