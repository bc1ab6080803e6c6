//! Lockstep with the naive model of address spaces: every verb and every access is done to both, and compared.
//!
//! Accesses go through the machine's software MMU and its modelled TLB, with stores of words that are looked for again,
//! so that a lost flush, a page that went to two owners and a copy that was not made all show.

mod access;
mod compare;
mod verbs;

use oracle::space::{Family, Rules, SpaceId};

use super::survey::SurveyedFile;

/// The model of all address spaces of a trace.
pub(super) struct Check {
    family: Family,
    /// The word that the last store stored.
    word: u64,
}

/// What differs, if anything does.
pub(super) type Verdict = Result<(), String>;

impl Check {
    pub(super) fn new(files: &[SurveyedFile]) -> Self {
        let mut family = Family::new(Rules::default());
        for (number, file) in (0..).zip(files) {
            family.set_file(number, file.bytes);
        }
        Self { family, word: 0 }
    }

    /// A new, empty address space.
    pub(super) fn create(&mut self) -> SpaceId {
        self.family.create()
    }

    /// A copy of one.
    pub(super) fn fork(&mut self, id: SpaceId) -> SpaceId {
        self.family.fork(id)
    }

    /// One is gone.
    pub(super) fn exit(&mut self, id: SpaceId) {
        self.family.exit(id);
    }

    /// Where the heap starts.
    pub(super) fn set_brk_start(&mut self, id: SpaceId, addr: u64) {
        self.family.set_brk_start(id, addr);
    }
}
