//! Collapse of huge pages mapped in parts (`MADV_COLLAPSE`). Frames and rights stay, so tasks keep using
//! them.
//!
//! A page of 1 GiB is collapsed in *stages*. First all of it is checked, 128 MiB under each hold of the lock
//! for reading. Then as many tables at a time become leaves of 2 MiB, under the lock for writing, and finally
//! these become one leaf. Other tasks get the lock between two steps. An obstacle found by the check refuses
//! the page, and nothing has changed. A later obstacle ends the call, and the next call goes on from there. A
//! task that touches the page waits for one flush at most. After each step, under the lock for reading,
//! secondary MMUs are told that larger leaves are possible. They are never stopped.
//!
//! [`CollapseSteps::Direct`] installs the leaf of 1 GiB in one step: all entries are compared under the lock.
//!
//! The patches for Linux (Houghton, v2, 2023) zapped the range, which filled holes and lost write-protect
//! marks, inside one notifier bracket, so that no virtual CPU could touch it for 10 ms to a second.
#![forbid(unsafe_code)]

use super::report::{Done, Refusal, refuse_if};
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::hugetlb::HugeSize;
use crate::limits::COLLAPSE_TABLES;
use crate::pgtable::Obstacle;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::collapse::call::CollapseCall;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::state::Space;

/// How a page of 1 GiB is collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CollapseSteps {
    /// 128 MiB at a time to leaves of 2 MiB, then these to one.
    #[default]
    Staged,
    /// All at once.
    Direct,
}

const STEP_BYTES: u64 = COLLAPSE_TABLES as u64 * PageSize::Size2M.bytes();

impl From<Obstacle> for Refusal {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Hole => Self::Missing,
            Obstacle::Rights => Self::Rights,
            Obstacle::Frames => Self::Apart,
            Obstacle::Lost => Self::Lost,
            Obstacle::Busy | Obstacle::Shared => Self::Busy,
        }
    }
}

impl<P: Platform> CollapseCall<'_, '_, P> {
    /// The size of the leaf that may be made at `at`, up to `end`; `None` in mappings of other than huge
    /// pages.
    pub(super) fn huge_extent(self, at: VirtAddr, end: VirtAddr) -> Option<PageSize> {
        let space = self.space.read(self.memory.platform());
        let vma = space.tree.find(at)?;
        let whole = VirtRange { start: at, end: at.add(PageSize::Size1G.bytes()) };
        let gigantic = vma.attributes.huge_size()? == HugeSize::Size1G
            && at.is_aligned(PageSize::Size1G.bytes())
            && whole.end <= end.min(vma.range.end);
        Some(if gigantic { PageSize::Size1G } else { PageSize::Size2M })
    }

    /// Makes one leaf of `size` in a mapping of huge pages. The caller holds no lock.
    pub(super) fn collapse_huge(
        self,
        extent: VirtRange,
        size: PageSize,
        steps: CollapseSteps,
    ) -> Result<Done, Refusal> {
        if self.is_one_leaf(extent, size)? {
            return Ok(Done::Large);
        }
        match (size, steps) {
            (PageSize::Size1G, CollapseSteps::Staged) => self.collapse_staged(extent)?,
            _ => self.collapse_step(extent, size, None)?,
        }
        Ok(if size == PageSize::Size1G { Done::Gigantic } else { Done::Reshaped })
    }

    fn is_one_leaf(self, extent: VirtRange, size: PageSize) -> Result<bool, Refusal> {
        let space = self.space.read(self.memory.platform());
        check_split(&space, extent)?;
        let leaf = self.tables().lookup(extent.start).leaf_size();
        Ok(leaf.is_some_and(|leaf| leaf >= size))
    }

    /// Checks all tables of the extent, makes leaves of 2 MiB of them, and one leaf of these. A step need not
    /// check its tables again unless another task held the lock for writing.
    fn collapse_staged(self, extent: VirtRange) -> Result<(), Refusal> {
        let (mut seen, mut alone) = (None, true);
        for part in steps(extent) {
            let now = self.check_step(extent, part)?;
            alone &= seen.replace(now).is_none_or(|before| before == now);
            self.memory.platform().reschedule_point();
        }
        self.collapse_tables(extent, seen.filter(|_| alone))?;
        self.collapse_step(extent, PageSize::Size1G, None)
    }

    /// Makes leaves of 2 MiB of all tables in the extent. `writes`: the lock's number of writers during the
    /// check, if it was the same throughout.
    fn collapse_tables(self, extent: VirtRange, writes: Option<u32>) -> Result<(), Refusal> {
        for (step, part) in steps(extent).enumerate() {
            let expected = writes.map(|writes| writes.wrapping_add(1 + step as u32));
            self.collapse_step(part, PageSize::Size2M, expected)?;
            self.memory.platform().reschedule_point();
        }
        Ok(())
    }

    /// Checks a part; returns the lock's number of writers.
    fn check_step(self, extent: VirtRange, part: VirtRange) -> Result<u32, Refusal> {
        let space = self.space.read(self.memory.platform());
        check_split(&space, extent)?;
        self.tables().check_collapse(extent.start, PageSize::Size1G, part)?;
        Ok(space.writes())
    }

    /// Collapses all tables in the part, or a whole gigantic page. `writes`: the lock's number of writers if
    /// no other task has held it for writing since the check.
    fn collapse_step(self, part: VirtRange, size: PageSize, writes: Option<u32>) -> Result<(), Refusal> {
        let space = self.lock();
        check_split(&space, part)?;
        let mut gather = MmuGather::new(self.memory.pages(), self.context());
        let collapsed = match size {
            PageSize::Size1G => self.tables().collapse_whole(part.start, &mut gather).map(u64::from),
            _ => {
                let checked = writes == Some(space.writes());
                self.tables().collapse_tables(part, checked, &mut gather)
            }
        };
        // Detached tables are flushed: other tasks go on while they are taken apart.
        drop(space);
        gather.finish();
        let collapsed = collapsed?;
        self.memory.pages().count(Stat::ThpCollapseShape, collapsed);
        if collapsed > 0 && self.context().has_secondary() {
            // Other tasks may fault meanwhile. A leaf that has changed again is found changed.
            let _space = self.space.read(self.memory.platform());
            self.context().collapse_possible(self.memory.platform(), part);
        }
        Ok(())
    }
}

/// The parts of an extent, each for one step.
fn steps(extent: VirtRange) -> impl Iterator<Item = VirtRange> {
    let at = (0..extent.len()).step_by(STEP_BYTES as usize);
    at.map(move |at| VirtRange::from_len(extent.start.add(at), STEP_BYTES))
}

/// Refuses an extent that does not lie in one mapping of huge pages whose parts may be mapped by themselves.
fn check_split(space: &Space, extent: VirtRange) -> Result<(), Refusal> {
    let vma = space.tree.find(extent.start).filter(|vma| vma.range.covers(extent));
    let vma = vma.ok_or(Refusal::TooSmall)?;
    refuse_if(!vma.attributes.flags.contains(VmaFlags::SPLIT), Refusal::HugePages)
}
