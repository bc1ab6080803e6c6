//! Draining in the published ways: span by span, and a folio at a time.
#![forbid(unsafe_code)]

use super::{Content, MmuGather};
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;
use crate::tlb::drain::Drain;

impl<P: TablePlatform> MmuGather<'_, '_, P> {
    /// Drops the counts of the spans from `at` on that hold leaves onto one folio, in the published ways:
    /// each by itself, as they have a call of the reverse map for each, and the folio is freed with the last,
    /// as they give up its references. Returns the span that follows.
    #[inline(never)]
    pub(super) fn drain_folio(&self, drain: &mut Drain<'_, '_, P>, at: usize) -> usize {
        let leaves = |at: usize| match (at < self.span_count).then(|| self.span(at).content()) {
            Some(Content::Leaves(leaves)) => Some(leaves),
            _ => None,
        };
        let (mut next, mut unmapped) = (at, FrameMask::EMPTY);
        while let Some(these) = leaves(next) {
            next += 1;
            let follower = leaves(next).map(|leaves| leaves.frames.start);
            if !drain.span(&these, follower, &mut unmapped) {
                break;
            }
        }
        next
    }
}
