//! The memory limits of the recorded program, and the refusals that they explain.
//!
//! A refusal because of a limit is not repeated: a trace does not show how much was done before it, nor
//! limits that the program set itself. Where Linux granted a call, no limit stops Quire.

use quire::arch::Protection;
use quire::limits::MAX_MAPPINGS;
use quire::vm::Mm;
use quire::vm::vma::VmaFlags;

use hosted::Hosted;

use super::processes::Key;
use super::replayer::Replayer;
use super::verb::Verb;
use crate::trace::{Limits, Overcommit};

/// Difference in the number of mappings from Linux, which merges neighbours by other rules.
const SLACK: u64 = 64;

/// The mappings that an address space may have in the replay. Version 1 of the trace format does not record
/// it.
pub(super) fn mappings(limits: Option<&Limits>) -> usize {
    limits.map_or(usize::MAX, |limits| limits.mappings.saturating_add(SLACK) as usize)
}

impl Replayer<'_> {
    /// Puts a fresh address space under the recorded limits.
    pub(super) fn limit(&self, mm: &Mm<'_, Hosted>) {
        mm.set_mapping_limit(mappings(self.survey.header.limits.as_ref()));
    }

    /// Whether a limit, rather than arguments and mappings alone, may be the cause of `ENOMEM` for this verb.
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
        // Newly writable memory and its growth are charged.
        let (addr, len, charged) = match *verb {
            Verb::Mprotect { addr, len, prot } => (addr, len, prot.contains(Protection::WRITE)),
            Verb::Mremap { addr, old, new, .. } => (addr, old, new > old),
            _ => return false,
        };
        // A hole would explain it without any limit.
        scarce && charged && self.has_no_hole(key, addr, len)
    }

    /// Whether the lowest mapping above an address is a stack, which could grow to it.
    pub(super) fn is_below_stack(&self, key: Key, addr: u64) -> bool {
        let mut above = None;
        self.processes.get(key).mm.vmas(|vma| {
            if vma.range.start.0 > addr {
                above.get_or_insert(vma.flags.contains(VmaFlags::GROWS_DOWN));
            }
        });
        above == Some(true)
    }
}
