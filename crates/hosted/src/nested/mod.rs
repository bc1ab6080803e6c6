//! A secondary MMU: second-stage tables as a hypervisor has them for its guest's memory, and what it is told by the library.
//!
//! A [`Nested`] keeps copies of an address space's leaves in tables of its own, by guest-physical address: the address in the
//! hypervisor's address space less a base. Virtual CPUs load and store through them. What the library promises a
//! secondary MMU is checked like what it promises a TLB: a frame that is freed while a copy leads to it is a violation
//! ([`Violation::FreedNested`]), and so is a copy that the page table does not bear out ([`Nested::check`]).
//! [`Hosted::lose_brackets`] loses brackets on purpose, to show that this would be noticed.

mod brackets;
mod cpu;
mod guest;
mod radix;
mod slot;
mod tables;

use std::sync::{Arc, PoisonError, RwLock};

use quire::addr::{Frame, FrameRange, VirtRange};

pub use brackets::{BracketStats, during};
pub use cpu::VirtualCpu;
pub use guest::{Found, Nested, NestedLeaf};
pub use tables::NestedStats;
pub(crate) use tables::Tables;

use crate::failures::{FailurePlan, Failures};
use crate::machine::Hosted;
use crate::task::hold;
use crate::tlb::Reach;
use crate::violation::Violation;

/// All secondary MMUs of a machine.
pub(crate) struct NestedTables {
    all: RwLock<Vec<Arc<Tables>>>,
    pub(crate) reach: Arc<Reach>,
    /// Which brackets are lost.
    losses: Failures,
}

impl NestedTables {
    /// For a machine whose memory ends at frame `frames`; none is looked for where that is zero.
    pub(crate) fn new(frames: u64) -> Self {
        Self { all: RwLock::default(), reach: Arc::new(Reach::new(frames)), losses: Failures::default() }
    }

    fn add(&self, tables: Arc<Tables>) {
        let _held = hold();
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(tables);
    }

    fn remove(&self, tables: &Arc<Tables>) {
        let _held = hold();
        self.all.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, tables));
    }

    /// Those of one address space, or of all.
    fn of(&self, root: Option<Frame>) -> Vec<Arc<Tables>> {
        let _held = hold();
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|tables| root.is_none_or(|root| tables.root() == root)).cloned().collect()
    }

    /// Every way in which a secondary MMU still reaches one of `frames`; cheap when there is none.
    pub(crate) fn reaching(&self, frames: FrameRange) -> Vec<Violation> {
        if !self.reach.may_reach(frames) {
            return Vec::new();
        }
        let mut found = Vec::new();
        self.of(None).iter().for_each(|tables| tables.reaching(frames, &mut found));
        found
    }
}

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
