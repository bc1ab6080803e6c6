//! All secondary MMUs of a machine.

use std::sync::{Arc, PoisonError, RwLock};

use quire::addr::{Frame, FrameRange};

use super::tables::Tables;
use crate::failures::Failures;
use crate::task::hold;
use crate::tlb::Reach;
use crate::violation::Violation;

/// All secondary MMUs of a machine.
pub(crate) struct NestedTables {
    all: RwLock<Vec<Arc<Tables>>>,
    pub(crate) reach: Arc<Reach>,
    /// Which brackets are lost.
    pub(super) losses: Failures,
}

impl NestedTables {
    /// For a machine whose memory ends at frame `frames`; zero turns the checks off.
    pub(crate) fn new(frames: u64) -> Self {
        Self { all: RwLock::default(), reach: Arc::new(Reach::new(frames)), losses: Failures::default() }
    }

    pub(super) fn add(&self, tables: Arc<Tables>) {
        let _held = hold();
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(tables);
    }

    pub(super) fn remove(&self, tables: &Arc<Tables>) {
        let _held = hold();
        self.all.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, tables));
    }

    /// The tables of one address space, or of all.
    pub(super) fn of(&self, root: Option<Frame>) -> Vec<Arc<Tables>> {
        let _held = hold();
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|tables| root.is_none_or(|root| tables.root() == root)).cloned().collect()
    }

    /// Every copy that still leads to one of `frames`; cheap when there is none.
    pub(crate) fn reaching(&self, frames: FrameRange) -> Vec<Violation> {
        if !self.reach.may_reach(frames) {
            return Vec::new();
        }
        let mut found = Vec::new();
        self.of(None).iter().for_each(|tables| tables.reaching(frames, &mut found));
        found
    }
}
