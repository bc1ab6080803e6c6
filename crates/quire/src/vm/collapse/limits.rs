//! Which ranges may be collapsed: within limits in the background, beyond them by call.
#![forbid(unsafe_code)]

use super::report::{Refusal, refuse_if};
use crate::addr::{Order, VirtRange};
use crate::filemap::{BlockSurvey, FileKind, FileRef};
use crate::limits::{BLOCK_FRAMES, TABLE_ENTRIES};
use crate::pgtable::TableSurvey;
use crate::vm::mapping::policy::{FolioPolicy, HugeAdvice};
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::state::Space;
use crate::vm::userfault::UserfaultModes;

/// The background collapses 2 MiB with at most so many pages of each kind, up to 511. Names and defaults are
/// Linux's, as files of `/sys/kernel/mm/transparent_hugepage/khugepaged/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Pages that are missing, or are zeroes that were never stored to: each takes a frame afterwards. Of
    /// shared anonymous memory: pages that were never touched. Also how many pages of zeroes a folio may have
    /// before [`Splitter`](super::Splitter) splits it.
    pub max_ptes_none: usize,
    /// Pages of a file that must be read from its backing store. (There is no swap.)
    pub max_ptes_swap: usize,
    /// Anonymous pages that other address spaces map as well: each takes one frame more afterwards. Pages of
    /// files are moved for all that map them, so it does not limit these.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Terms {
    /// The program asked for it.
    Forced,
    /// Within these limits, if the policy wants it and the program uses the memory.
    Within(CollapseLimits),
}

impl Terms {
    /// Whether the mapping at the start of a range maps a file, not of huge pages.
    pub(super) fn is_of_file(&self, space: &Space, extent: VirtRange) -> bool {
        space
            .tree
            .find(extent.start)
            .is_some_and(|vma| !vma.attributes.is_anonymous() && vma.attributes.huge_size().is_none())
    }

    /// Checks the mapping of a file around 2 MiB; returns it, the file, and the file's page at the start.
    pub(super) fn file<'s>(
        &self,
        space: &'s Space,
        extent: VirtRange,
        policy: FolioPolicy,
    ) -> Result<(&'s Vma, &'s FileRef, u64), Refusal> {
        let vma = space.tree.find(extent.start).ok_or(Refusal::TooSmall)?;
        let (Backing::File { file, .. }, Some(first)) =
            (&vma.attributes.backing, vma.file_page(extent.start))
        else {
            return Err(Refusal::Busy);
        };
        refuse_if(!vma.range.covers(extent), Refusal::TooSmall)?;
        refuse_if(!self.wants(vma, policy), Refusal::NotAllowed)?;
        refuse_if(!first.is_multiple_of(BLOCK_FRAMES as u64), Refusal::Offset)?;
        refuse_if(vma.attributes.handler.is_some(), Refusal::Watched)?;
        refuse_if(vma.may_map_block(extent).is_none(), Refusal::SharedStores)?;
        Ok((vma, file, first))
    }

    /// Checks the pages of a file. `beyond`: some are behind its end.
    pub(super) fn pages(&self, kind: FileKind, beyond: bool, survey: &BlockSurvey) -> Result<(), Refusal> {
        let (missing, paged) = (BLOCK_FRAMES - survey.present, matches!(kind, FileKind::Paged(_)));
        refuse_if(beyond, Refusal::Beyond)?;
        refuse_if(survey.lost > 0, Refusal::Lost)?;
        refuse_if(survey.present == 0 && !paged, Refusal::Empty)?;
        refuse_if(survey.busy > 0, Refusal::Busy)?;
        if let Self::Within(limits) = self {
            refuse_if(!paged && missing > limits.max_ptes_none, Refusal::Holes)?;
            refuse_if(paged && missing > limits.max_ptes_swap, Refusal::Swapped)?;
        }
        Ok(())
    }

    /// Whether folios of 2 MiB may come in a mapping.
    fn wants(&self, vma: &Vma, policy: FolioPolicy) -> bool {
        let attributes = &vma.attributes;
        match self {
            Self::Forced => attributes.advice != HugeAdvice::NoHuge,
            Self::Within(_) => {
                policy.pmd_mapped
                    && policy.allowed(attributes.advice, attributes.folios).contains(Order::BLOCK)
            }
        }
    }

    /// Checks the mapping around 2 MiB of private anonymous memory.
    pub(super) fn mapping<'s>(
        &self,
        space: &'s Space,
        extent: VirtRange,
        policy: FolioPolicy,
    ) -> Result<&'s Vma, Refusal> {
        let vma = space.tree.find(extent.start).ok_or(Refusal::TooSmall)?;
        let attributes = &vma.attributes;
        refuse_if(attributes.huge_size().is_some(), Refusal::HugePages)?;
        refuse_if(!attributes.is_anonymous() || !attributes.is_private(), Refusal::NotAnonymous)?;
        refuse_if(!vma.range.covers(extent), Refusal::TooSmall)?;
        refuse_if(!self.wants(vma, policy), Refusal::NotAllowed)?;
        Ok(vma)
    }

    /// Checks the leaves in this mapping.
    pub(super) fn leaves(&self, vma: &Vma, survey: &TableSurvey) -> Result<(), Refusal> {
        refuse_if(survey.lost > 0, Refusal::Lost)?;
        refuse_if(survey.busy > 0, Refusal::Busy)?;
        refuse_if(survey.marked > 0, Refusal::Marked)?;
        refuse_if(survey.held > 0, Refusal::Held)?;
        refuse_if(survey.file > 0, Refusal::NotAnonymous)?;
        refuse_if(survey.present + survey.zero == 0, Refusal::Empty)?;
        // The handler, not the collapse, fills missing pages.
        let watched = vma.attributes.handler.catches(UserfaultModes::MISSING);
        refuse_if(watched && survey.holes() > survey.zero, Refusal::Watched)?;
        if let Self::Within(limits) = self {
            refuse_if(survey.holes() > limits.max_ptes_none, Refusal::Holes)?;
            refuse_if(survey.shared > limits.max_ptes_shared, Refusal::Shared)?;
            refuse_if(survey.lazy > 0, Refusal::Lazy)?;
            refuse_if(survey.young == 0, Refusal::Cold)?;
        }
        Ok(())
    }
}
