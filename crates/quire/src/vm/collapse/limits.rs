//! What is collapsed: the limits of the background, and what a call may do beyond them.
#![forbid(unsafe_code)]

use super::report::Refusal;
use crate::addr::{Order, VirtRange};
use crate::limits::TABLE_ENTRIES;
use crate::pgtable::TableSurvey;
use crate::vm::mm::Space;
use crate::vm::policy::{FolioPolicy, HugeAdvice};
use crate::vm::userfault::UserfaultModes;
use crate::vm::vma::Vma;

/// How much of 2 MiB may be what, for the background to collapse them. Names and defaults are Linux's, as files of
/// `/sys/kernel/mm/transparent_hugepage/khugepaged/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Pages that are missing, or are zeroes that nobody stored to: each takes a frame afterwards. Up to 511. Also how many
    /// pages of zeroes a folio may have before [`Splitter`](super::Splitter) takes it apart.
    pub max_ptes_none: usize,
    /// Pages that are in swap. There is none here, so it limits nothing.
    pub max_ptes_swap: usize,
    /// Pages that other address spaces map as well: each takes a frame more afterwards. Up to 511.
    pub max_ptes_shared: usize,
}

impl Default for CollapseLimits {
    /// Linux's: 511, 64, 256.
    fn default() -> Self {
        Self {
            max_ptes_none: TABLE_ENTRIES - 1,
            max_ptes_swap: TABLE_ENTRIES / 8,
            max_ptes_shared: TABLE_ENTRIES / 2,
        }
    }
}

/// On what terms something is collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Terms {
    /// The program asked for it.
    Forced,
    /// Within these limits, where the policy wants it and the memory is used.
    Within(CollapseLimits),
}

impl Terms {
    /// Whether the mapping around an aligned range of 2 MiB suits.
    pub(super) fn mapping<'s>(
        &self,
        space: &'s Space,
        extent: VirtRange,
        policy: FolioPolicy,
    ) -> Result<&'s Vma, Refusal> {
        let vma = space.tree.find(extent.start).ok_or(Refusal::TooSmall)?;
        let attributes = &vma.attributes;
        let wanted = match self {
            Self::Forced => attributes.advice != HugeAdvice::NoHuge,
            Self::Within(_) => {
                policy.pmd_mapped
                    && policy.allowed(attributes.advice, attributes.folios).contains(Order::BLOCK)
            }
        };
        if attributes.huge_size().is_some() {
            Err(Refusal::HugePages)
        } else if !attributes.is_anonymous() || !attributes.is_private() {
            Err(Refusal::NotAnonymous)
        } else if !vma.range.covers(extent) {
            Err(Refusal::TooSmall)
        } else if !wanted {
            Err(Refusal::NotAllowed)
        } else {
            Ok(vma)
        }
    }

    /// Whether the leaves in this mapping do.
    pub(super) fn leaves(&self, vma: &Vma, survey: &TableSurvey) -> Result<(), Refusal> {
        let refused = |refused: bool, why| if refused { Err(why) } else { Ok(()) };
        refused(survey.lost > 0, Refusal::Lost)?;
        refused(survey.marked > 0, Refusal::Marked)?;
        refused(survey.held > 0, Refusal::Held)?;
        refused(survey.file > 0, Refusal::NotAnonymous)?;
        refused(survey.present + survey.zero == 0, Refusal::Empty)?;
        // What is missing there is its handler's to bring in.
        let watched = vma.attributes.handler.catches(UserfaultModes::MISSING);
        refused(watched && survey.holes() > survey.zero, Refusal::Watched)?;
        if let Self::Within(limits) = self {
            refused(survey.holes() > limits.max_ptes_none, Refusal::Holes)?;
            refused(survey.shared > limits.max_ptes_shared, Refusal::Shared)?;
            refused(survey.lazy > 0, Refusal::Lazy)?;
            refused(survey.young == 0, Refusal::Cold)?;
        }
        Ok(())
    }
}
