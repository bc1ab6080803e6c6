//! What a machine tells its secondary MMUs, and which brackets it loses on purpose.

use quire::addr::{Frame, VirtRange};

use crate::machine::Hosted;
use crate::plan::FailurePlan;

impl Hosted {
    /// Decides which brackets are lost from now on, and counts them from 0: no secondary MMU hears of them, though the library
    /// goes on as if it had.
    pub fn lose_brackets(&self, plan: FailurePlan) {
        self.nested.losses.set(plan);
    }

    /// How many brackets began since [`Self::lose_brackets`] (none are counted under [`FailurePlan::Off`]).
    pub fn brackets_asked(&self) -> u64 {
        self.nested.losses.asked()
    }

    /// How many brackets were lost by the plan in force.
    pub fn brackets_lost(&self) -> u64 {
        self.nested.losses.failed()
    }

    pub(crate) fn start_bracket(&self, root: Frame, range: VirtRange) {
        let lost = self.nested.losses.fail();
        self.nested.of(Some(root)).iter().for_each(|tables| tables.start(range, lost));
    }

    /// A table that was made inside the bracket has not heard of its start.
    pub(crate) fn end_bracket(&self, root: Frame, range: VirtRange) {
        self.nested.of(Some(root)).iter().for_each(|tables| _ = tables.end(range));
    }

    pub(crate) fn collapse_copies(&self, root: Frame, range: VirtRange) {
        self.nested.of(Some(root)).iter().for_each(|tables| tables.collapse(range));
    }
}
