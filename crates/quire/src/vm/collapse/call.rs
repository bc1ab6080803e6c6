//! Collapse by call: `MADV_COLLAPSE`.
#![forbid(unsafe_code)]

use super::limits::Terms;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::error::MmError;
use crate::limits::{BLOCK_SIZE, FRAME_SIZE};
use crate::platform::Platform;
use crate::vm::collapse::{Collapse, CollapseSteps, Collapsed};
use crate::vm::handle::handle;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::verbs::change::covers;

handle! {
    /// Collapse by call.
    CollapseCall of AddressSpace
}

impl<P: Platform> CollapseCall<'_, '_, P> {
    /// See [`Mm::collapse`](crate::vm::Mm::collapse).
    pub(in crate::vm) fn collapse(self, addr: VirtAddr, len: u64) -> Result<Collapsed, MmError> {
        self.collapse_in(addr, len, CollapseSteps::Staged)
    }

    /// See [`Mm::collapse_in`](crate::vm::Mm::collapse_in).
    pub(in crate::vm) fn collapse_in(
        self,
        addr: VirtAddr,
        len: u64,
        steps: CollapseSteps,
    ) -> Result<Collapsed, MmError> {
        let pages = VirtAddr(len).align_up(FRAME_SIZE).ok_or(MmError::Invalid)?.0;
        let end = addr.0.checked_add(pages).map(VirtAddr).ok_or(MmError::Invalid)?;
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        let covered = covers(&self.space.read(self.memory.platform()), VirtRange::new(addr, end));
        let mut report = Collapsed::default();
        let mut at = addr.align_up(BLOCK_SIZE).ok_or(MmError::Invalid)?;
        while at < end && end.0 - at.0 >= BLOCK_SIZE && !self.memory.platform().is_dying() {
            // Skip holes between mappings, so that a long range with few of them takes little time.
            let Some(start) = self.first_mapped(VirtRange::new(at, end)) else { break };
            if start > at {
                at = start;
                continue;
            }
            let huge = self.huge_extent(at, end);
            let extent = VirtRange::from_len(at, huge.map_or(BLOCK_SIZE, PageSize::bytes));
            report.note(match huge {
                Some(size) => self.collapse_huge(extent, size, steps),
                None => Collapse::of(self.memory).collapse_extent(self.body(), extent, &Terms::Forced),
            });
            at = extent.end;
            self.memory.platform().reschedule_point();
        }
        covered.map(|()| report)
    }

    /// The first 2 MiB of a range that reach into a mapping. The range begins at a multiple of 2 MiB.
    fn first_mapped(self, range: VirtRange) -> Option<VirtAddr> {
        let space = self.space.read(self.memory.platform());
        space.tree.first_in(range).map(|vma| vma.range.start.align_down(BLOCK_SIZE).max(range.start))
    }
}
