//! The limits on memory that the recorded program ran under, and what they explain.
//!
//! What Linux refused for a limit is not repeated: a trace does not tell how much of it was done before, and which limits the
//! program set itself. Where Linux granted something, a limit never stands in Quire's way.

use quire::arch::Protection;
use quire::limits::MAX_MAPPINGS;
use quire::vm::Mm;

use hosted::Hosted;

use super::processes::Key;
use super::replayer::Replayer;
use super::verb::Verb;
use crate::trace::{Limits, Overcommit};

/// So many mappings more or less there may be than Linux had: neighbours are merged by other rules.
const SLACK: u64 = 64;

/// How many mappings an address space may have in the replay. Version 1 of the trace format does not tell.
pub(super) fn mappings(limits: Option<&Limits>) -> usize {
    limits.map_or(usize::MAX, |limits| limits.mappings.saturating_add(SLACK) as usize)
}

impl Replayer<'_> {
    /// An address space in which nothing has happened yet is under the recorded limits from now on.
    pub(super) fn limit(&self, mm: &Mm<'_, Hosted>) {
        mm.set_mapping_limit(mappings(self.survey.header.limits.as_ref()));
    }

    /// Whether `ENOMEM` for this verb may rest on a limit, rather than on its arguments and the mappings alone.
    pub(super) fn limits_explain(&self, key: Key, verb: &Verb) -> bool {
        let limits = self.survey.header.limits;
        let most = limits.map_or(MAX_MAPPINGS as u64, |limits| limits.mappings);
        let mut mappings = 0;
        self.processes.get(key).mm.vmas(|_| mappings += 1);
        if mappings + SLACK >= most {
            return true;
        }
        let scarce = limits.is_some_and(|limits| {
            let bounded = [limits.address_space, limits.data, limits.locked];
            limits.overcommit != Overcommit::Always || bounded.iter().any(|&bytes| bytes != Limits::NONE)
        });
        // Memory that can be stored to for the first time, and more of it, is charged.
        let (addr, len, charged) = match *verb {
            Verb::Mprotect { addr, len, prot } => (addr, len, prot.contains(Protection::WRITE)),
            Verb::Mremap { addr, old, new, .. } => (addr, old, new > old),
            _ => return false,
        };
        // A hole would be a reason without any limit.
        scarce && charged && self.has_no_hole(key, addr, len)
    }

    /// Whether an access so far below a stack was refused by the limit of stacks.
    pub(super) fn is_below_stack_limit(&self, key: Key, addr: u64) -> bool {
        let Some(limits) = self.survey.header.limits else { return false };
        let mut above = None;
        self.processes.get(key).mm.vmas(|vma| {
            if vma.range.start.0 > addr && above.is_none() {
                above = Some(vma.range.end.0);
            }
        });
        above.is_some_and(|end| end - addr > limits.stack)
    }
}
