//! Ends of ranges that lie inside a huge page.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::hugetlb::HugeSize;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::state::Space;

/// Refuses a range one of whose ends lies inside a huge page.
pub(in crate::vm) fn check_ends(space: &Space, range: VirtRange) -> Result<(), MmError> {
    let cut = cuts(space, range.start).is_some() || cuts(space, range.end).is_some();
    if cut { Err(MmError::Invalid) } else { Ok(()) }
}

/// Refuses a range one of whose ends lies inside a huge page, unless its parts may be mapped by themselves.
pub(in crate::vm) fn check_parts(space: &Space, range: VirtRange) -> Result<(), MmError> {
    let cut = cuts_whole(space, range.start).is_some() || cuts_whole(space, range.end).is_some();
    if cut { Err(MmError::Invalid) } else { Ok(()) }
}

/// As [`cuts`], if the huge pages are mapped whole or not at all.
fn cuts_whole(space: &Space, at: VirtAddr) -> Option<HugeSize> {
    let size = cuts(space, at)?;
    let split = space.tree.find(at)?.attributes.flags.contains(VmaFlags::SPLIT);
    (!split).then_some(size)
}

/// The size of the huge page that this address lies in, not at its start.
pub(in crate::vm) fn cuts(space: &Space, at: VirtAddr) -> Option<HugeSize> {
    let mapping = if space.huge { space.tree.find(at) } else { None };
    let size = mapping?.attributes.huge_size()?;
    (!at.is_aligned(size.bytes())).then_some(size)
}

impl Space {
    /// The range that `MADV_DONTNEED` drops: without the part of a huge page in which `range` ends, and
    /// refused if it starts inside one, unless parts may be mapped by themselves. (Linux rounds in the same
    /// way, so that a caller that knows nothing of huge pages loses nothing.)
    pub(in crate::vm) fn whole_pages(&self, range: VirtRange) -> Result<VirtRange, MmError> {
        if cuts_whole(self, range.start).is_some() {
            return Err(MmError::Invalid);
        }
        let end = match cuts_whole(self, range.end) {
            Some(size) => range.end.align_down(size.bytes()).max(range.start),
            None => range.end,
        };
        Ok(VirtRange::new(range.start, end))
    }
}
