//! The step of `mmap` under the lock: chooses a place, clears it, and inserts the mapping there.
#![forbid(unsafe_code)]

use crate::addr::VirtRange;
use crate::error::MmError;
use crate::hugetlb::HugeSize;
use crate::limits::FRAME_SHIFT;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::limits::is_data;
use crate::vm::space::state::{LockMode, Space};
use crate::vm::tree::layout::Fit;
use crate::vm::tree::{VmaBox, VmaList, edit};
use crate::vm::userfault::changes::Notices;
use crate::vm::verbs::munmap::Munmap;
use crate::vm::verbs::request::{Backing, MapRequest, Sharing};

/// The end of file offsets in pages: offsets are signed 64-bit numbers.
const OFFSET_END: u64 = i64::MAX as u64 >> FRAME_SHIFT;

handle! { Placing of AddressSpace }

impl<P: Platform> Placing<'_, '_, P> {
    /// Inserts a node at the place for it, or discards it on an error.
    pub(in crate::vm) fn map_node(
        self,
        request: &MapRequest<'_>,
        node: VmaBox,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let (range, flags, gone) = self.place_node(request, node)?;
        Notices::of(self.0).discard_unmapped(gone);
        Ok((range, flags))
    }

    /// As [`Self::map_node`]. Also returns the mappings that were there, which the caller passes to
    /// [`Notices::discard_unmapped`] once it holds nothing that a handler may need.
    pub(in crate::vm) fn place_node(
        self,
        request: &MapRequest<'_>,
        node: VmaBox,
    ) -> Result<(VirtRange, VmaFlags, VmaList), MmError> {
        let mut space = self.lock();
        let made = self.map_locked(&mut space, request, node);
        if let Ok((.., gone)) = &made {
            Notices::of(self.0).announce_unmapped(gone);
        }
        drop(space);
        made.map_err(|(error, node)| {
            self.memory.discard(node);
            error
        })
    }

    fn map_locked(
        self,
        space: &mut SpaceGuard<'_, P>,
        request: &MapRequest<'_>,
        mut node: VmaBox,
    ) -> Result<(VirtRange, VmaFlags, VmaList), (MmError, VmaBox)> {
        let (len, size) = (node.range.len(), node.attributes.huge_size());
        space.huge |= size.is_some();
        let range = match choose_place(space, request, len, size) {
            Ok(range) => range,
            Err(error) => return Err((error, node)),
        };
        if let Err(error) = space.check_limits(len, is_data(&node.attributes), range) {
            return Err((error, node));
        }
        let mut gone = match Munmap::of(self.0).unmap_beside_faults(space, range) {
            Ok(gone) => gone,
            Err(error) => return Err((error, node)),
        };
        let wanted = if request.locked && space.lock_future == LockMode::None {
            LockMode::Now
        } else {
            space.lock_future
        };
        let flags = node.attributes.flags.union(wanted.flags());
        // Huge pages never count as locked, but the caller brings them in.
        if size.is_none() {
            node.attributes.flags = flags;
        }
        node.range = range;
        match edit::insert(&mut space.tree, node, &mut gone) {
            Ok(()) => Ok((range, flags, gone)),
            Err(node) => {
                debug_assert!(false, "{range:?} was free a moment ago");
                self.memory.discard_list(gone);
                Err((MmError::NoMemory, node))
            }
        }
    }
}

fn choose_place(
    space: &Space,
    request: &MapRequest<'_>,
    len: u64,
    size: Option<HugeSize>,
) -> Result<VirtRange, MmError> {
    if space.tree.len() > space.mapping_limit {
        return Err(MmError::NoMemory);
    }
    let anonymous = matches!(request.backing, Backing::Anonymous);
    let private = request.sharing == Sharing::Private;
    let fit = match size {
        Some(size) => Fit::Must(size.bytes()),
        None => Fit::large_if(anonymous && private),
    };
    let range = space.layout.place(&space.tree, request.addr, len, request.placement, fit)?;
    if let Backing::File { page_offset, .. } = request.backing
        && page_offset.saturating_add(range.pages()) > OFFSET_END
    {
        return Err(MmError::Overflow);
    }
    if request.grows_down && !(anonymous && private && size.is_none()) {
        return Err(MmError::Invalid);
    }
    Ok(range)
}
