//! Lockstep with the naive model of address spaces: both get every verb and every access, and the results are
//! compared.
//!
//! Accesses go through the machine's software MMU and its modelled TLB, and stored words are read again. So a
//! lost flush, a page with two owners and a missing copy all show.

mod access;
mod compare;
mod verbs;

use std::collections::HashSet;

use oracle::space::{Advice, Family, Rules, SpaceId};

use super::survey::SurveyedFile;

/// The model of all address spaces of a trace.
pub(super) struct Check {
    family: Family,
    /// The numbers of files that are shared memory.
    shmem: HashSet<u64>,
    /// The word that the last store stored.
    word: u64,
}

/// The difference, if there is one.
pub(super) type Verdict = Result<(), String>;

impl Check {
    pub(super) fn new(files: &[SurveyedFile]) -> Self {
        let (mut family, mut shmem) = (Family::new(Rules::default()), HashSet::new());
        for (number, file) in (0..).zip(files) {
            family.set_file(number, file.bytes);
            if file.shmem {
                // What is added behind the end of a file is zeroes.
                family.truncate(number, 0);
                family.set_file(number, file.bytes);
                shmem.insert(number);
            }
        }
        Self { family, shmem, word: 0 }
    }

    /// A new, empty address space.
    pub(super) fn create(&mut self) -> SpaceId {
        self.family.create()
    }

    /// A copy of an address space, in which these ranges are empty: start and length.
    pub(super) fn fork(&mut self, id: SpaceId, wiped: &[(u64, u64)]) -> SpaceId {
        let child = self.family.fork(id);
        for &(addr, len) in wiped {
            // Only locked memory would refuse it, and no memory of a child is locked.
            _ = self.family.madvise(child, addr, len, Advice::DontNeed);
        }
        child
    }

    /// Ends an address space.
    pub(super) fn exit(&mut self, id: SpaceId) {
        self.family.exit(id);
    }

    /// Sets the start of the heap.
    pub(super) fn set_brk_start(&mut self, id: SpaceId, addr: u64) {
        self.family.set_brk_start(id, addr);
    }
}
