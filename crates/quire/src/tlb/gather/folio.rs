//! The drain of the published ways: span by span, and a folio at a time.
#![forbid(unsafe_code)]

use super::{Content, MmuGather};
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;
use crate::tlb::drain::Drain;

impl<P: TablePlatform> MmuGather<'_, '_, P> {
    /// Drops the counts of the spans from `at` on that hold leaves onto one folio: one by one, as the
    /// published ways call their reverse map for each, and frees the folio with the last, as they drop its
    /// references then. Returns the index of the span that follows.
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
