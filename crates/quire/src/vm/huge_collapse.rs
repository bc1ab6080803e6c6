//! Collapse of huge pages that are mapped in parts (`MADV_COLLAPSE`): same frames, same rights, so nobody is kept from them.
//!
//! A page of 1 GiB is collapsed in *stages*: it is looked at first, 128 MiB under each hold of the lock for reading; then as many
//! tables at a time become leaves of 2 MiB under the lock for writing; then these one leaf. Between two steps others get the
//! lock. What is found in the way at first refuses the page, and nothing has changed; what comes in the way meanwhile ends
//! the call, and the next one goes on where this one ended. Who touches the page waits for one flush at most. Secondary MMUs
//! are told at the end that a larger leaf is possible, and never stopped.
//!
//! [`CollapseSteps::Direct`] puts the leaf of 1 GiB there in one step, with the lock held while all entries are compared.
//!
//! Linux's (Houghton, v2, 2023) zapped the range, which filled holes and lost write-protect marks, between start and end of a
//! notifier bracket for all of it, so that no virtual CPU could touch it for 10 ms to a second.
#![forbid(unsafe_code)]

use super::mm::Mm;
use super::vma::VmaFlags;
use crate::addr::{PageSize, VirtRange};
use crate::limits::COLLAPSE_TABLES;
use crate::pgtable::Obstacle;
use crate::platform::Platform;
use crate::tlb::MmuGather;

/// How a page of 1 GiB is collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CollapseSteps {
    /// 128 MiB at a time to leaves of 2 MiB, then these to one.
    #[default]
    Staged,
    /// All at once.
    Direct,
}

/// Bytes that one step changes.
const STEP_BYTES: u64 = COLLAPSE_TABLES as u64 * PageSize::Size2M.bytes();

impl<P: Platform> Mm<'_, P> {
    /// Makes one leaf of what maps an extent of `size`, in a mapping of huge pages whose parts may be mapped by themselves; whether
    /// it was not one before. The caller holds no lock.
    pub(super) fn collapse_huge(
        &self,
        extent: VirtRange,
        size: PageSize,
        steps: CollapseSteps,
    ) -> Result<bool, Obstacle> {
        if size == PageSize::Size1G && steps == CollapseSteps::Staged {
            self.each_step(extent, |mm, part| mm.check_step(extent, part))?;
            self.each_step(extent, |mm, part| mm.collapse_step(part, PageSize::Size2M).map(drop))?;
        }
        self.collapse_step(extent, size)
    }

    fn each_step(
        &self,
        extent: VirtRange,
        step: impl Fn(&Self, VirtRange) -> Result<(), Obstacle>,
    ) -> Result<(), Obstacle> {
        for at in (0..extent.len()).step_by(STEP_BYTES as usize) {
            step(self, VirtRange::from_len(extent.start.add(at), STEP_BYTES))?;
            self.memory.platform().reschedule_point();
        }
        Ok(())
    }

    fn check_step(&self, extent: VirtRange, part: VirtRange) -> Result<(), Obstacle> {
        let space = self.space.read(self.memory.platform());
        let split = |flags: VmaFlags| flags.contains(VmaFlags::SPLIT);
        let vma = space.tree.find(part.start).filter(|vma| split(vma.attributes.flags));
        vma.filter(|vma| vma.range.covers(extent)).ok_or(Obstacle::Hole)?;
        self.tables().check_collapse(extent.start, PageSize::Size1G, part)
    }

    /// One step: all tables in the part, or all of a gigantic page. Whether something became larger.
    fn collapse_step(&self, part: VirtRange, size: PageSize) -> Result<bool, Obstacle> {
        let space = self.lock();
        let split = space.tree.find(part.start).filter(|vma| vma.attributes.flags.contains(VmaFlags::SPLIT));
        split.filter(|vma| vma.range.covers(part)).ok_or(Obstacle::Hole)?;
        let mut gather = MmuGather::new(self.memory.pages(), self.context());
        let collapsed = match size {
            PageSize::Size1G => self.tables().collapse_whole(part.start, &mut gather),
            _ => self.tables().collapse_tables(part, &mut gather).map(|tables| tables > 0),
        };
        if collapsed == Ok(true) && part.len() == size.bytes() {
            self.context().collapse_possible(self.memory.platform(), part);
        }
        // What was taken out is flushed: it is counted down while others go on.
        drop(space);
        gather.finish();
        collapsed
    }
}
