//! The drain of the published ways: span by span, and a folio at a time.
#![forbid(unsafe_code)]

use super::{Content, MmuGather};
use crate::memmap::FrameMask;
use crate::platform::TablePlatform;
use crate::tlb::drain::Drain;
use crate::tlb::unmapped::Leaves;

impl<P: TablePlatform> MmuGather<'_, '_, P> {
    /// Drops the counts of `span` and of those from `next` on that hold leaves onto the same folio: one by one,
    /// as the published ways call their reverse map for each, and frees the folio with the last, as they drop
    /// its references then. Returns the index of the span that follows.
    #[inline(never)]
    pub(super) fn drain_folio(
        &self,
        drain: &mut Drain<'_, '_, P>,
        mut span: Leaves,
        mut next: usize,
    ) -> usize {
        let leaves = |at: usize| match (at < self.span_count).then(|| self.span(at).content()) {
            Some(Content::Leaves(leaves)) => Some(leaves),
            _ => None,
        };
        let mut unmapped = FrameMask::EMPTY;
        while let Some(more) = drain.span(&span, leaves(next), &mut unmapped) {
            (span, next) = (more, next + 1);
        }
        next
    }
}
