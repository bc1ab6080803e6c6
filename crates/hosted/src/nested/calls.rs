//! A machine's calls to its secondary MMUs, and the brackets that it loses on purpose.

use quire::addr::{Frame, PageSize, VirtAddr, VirtRange};
use quire::vm::Translated;

use crate::machine::Hosted;
use crate::plan::FailurePlan;

impl Hosted {
    /// Decides which brackets are lost from now on, and counts them from 0: secondary MMUs are not notified
    /// of a lost one, though the library goes on as if they were.
    pub fn lose_brackets(&self, plan: FailurePlan) {
        self.nested.losses.set(plan);
    }

    /// Brackets that began since [`Self::lose_brackets`] (none are counted under [`FailurePlan::Off`]).
    pub fn brackets_asked(&self) -> u64 {
        self.nested.losses.asked()
    }

    /// Brackets that were lost by the current plan.
    pub fn brackets_lost(&self) -> u64 {
        self.nested.losses.failed()
    }

    pub(crate) fn start_bracket(&self, root: Frame, range: VirtRange) {
        let lost = self.nested.losses.fail();
        self.nested.of(Some(root)).iter().for_each(|tables| tables.start(range, lost));
    }

    /// Tables that were made inside the bracket were not notified of its start.
    pub(crate) fn end_bracket(&self, root: Frame, range: VirtRange) {
        self.nested.of(Some(root)).iter().for_each(|tables| _ = tables.end(range));
    }

    pub(crate) fn collapse_copies(&self, root: Frame, range: VirtRange) {
        let walk = |addr| self.leaf_for_copy(root, addr);
        let stale = self.nested.of(Some(root)).into_iter().filter_map(|tables| tables.collapse(range, &walk));
        self.all_violated(stale);
    }

    /// The leaf that maps an address, as a secondary MMU may copy it.
    fn leaf_for_copy(&self, root: Frame, addr: VirtAddr) -> Option<Translated> {
        let found = self.probe(root, addr).filter(|leaf| leaf.present && leaf.user)?;
        let sizes = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G];
        let size = sizes.into_iter().find(|size| size.frames() == found.frames)?;
        let writable = found.write && found.dirty;
        Some(Translated { addr: found.addr, frame: found.frame, size, writable })
    }
}
