//! What is collapsed: the limits of the background, and what a call may do beyond them.
#![forbid(unsafe_code)]

use super::report::Refusal;
use crate::addr::{Order, VirtRange};
use crate::filemap::{BlockSurvey, FileKind, FileRef};
use crate::limits::{BLOCK_FRAMES, TABLE_ENTRIES};
use crate::pgtable::TableSurvey;
use crate::vm::mapping::policy::{FolioPolicy, HugeAdvice};
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::state::Space;
use crate::vm::userfault::UserfaultModes;

/// How much of 2 MiB may be what, for the background to collapse them. Names and defaults are Linux's, as
/// files of `/sys/kernel/mm/transparent_hugepage/khugepaged/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// Pages that are missing, or are zeroes that were never stored to: each takes a frame afterwards. Up to
    /// 511. Of shared anonymous memory: pages that were never touched. Also how many pages of zeroes a folio
    /// may have before [`Splitter`](super::Splitter) takes it apart.
    pub max_ptes_none: usize,
    /// Pages that must be read: those of a file that are on its backing store alone. Up to 511. (There is no
    /// swap.)
    pub max_ptes_swap: usize,
    /// Anonymous pages that other address spaces map as well: each takes a frame more afterwards. Up to 511.
    /// Pages of files are moved for all that map them, so it does not limit these.
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
    /// Whether the mapping at the start of a range is one of a file, huge pages left out.
    pub(super) fn is_of_file(&self, space: &Space, extent: VirtRange) -> bool {
        space
            .tree
            .find(extent.start)
            .is_some_and(|vma| !vma.attributes.is_anonymous() && vma.attributes.huge_size().is_none())
    }

    /// Whether the mapping of a file around an aligned range of 2 MiB suits; the file, and its page at the
    /// start.
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
        let refused = |refused: bool, why| if refused { Err(why) } else { Ok(()) };
        refused(!vma.range.covers(extent), Refusal::TooSmall)?;
        refused(!self.wants(vma, policy), Refusal::NotAllowed)?;
        refused(!first.is_multiple_of(BLOCK_FRAMES as u64), Refusal::Offset)?;
        refused(vma.attributes.handler.is_some(), Refusal::Watched)?;
        refused(vma.may_map_block(extent).is_none(), Refusal::SharedStores)?;
        Ok((vma, file, first))
    }

    /// Whether the pages of a file do, of which some are behind its end or not.
    pub(super) fn pages(&self, kind: FileKind, beyond: bool, survey: &BlockSurvey) -> Result<(), Refusal> {
        let refused = |refused: bool, why| if refused { Err(why) } else { Ok(()) };
        let (missing, paged) = (BLOCK_FRAMES - survey.present, matches!(kind, FileKind::Paged(_)));
        refused(beyond, Refusal::Beyond)?;
        refused(survey.lost > 0, Refusal::Lost)?;
        refused(survey.present == 0 && !paged, Refusal::Empty)?;
        refused(survey.busy > 0, Refusal::Busy)?;
        if let Self::Within(limits) = self {
            refused(!paged && missing > limits.max_ptes_none, Refusal::Holes)?;
            refused(paged && missing > limits.max_ptes_swap, Refusal::Swapped)?;
        }
        Ok(())
    }

    /// Whether folios of 2 MiB are wanted in a mapping.
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

    /// Whether the mapping around an aligned range of 2 MiB suits.
    pub(super) fn mapping<'s>(
        &self,
        space: &'s Space,
        extent: VirtRange,
        policy: FolioPolicy,
    ) -> Result<&'s Vma, Refusal> {
        let vma = space.tree.find(extent.start).ok_or(Refusal::TooSmall)?;
        let attributes = &vma.attributes;
        let wanted = self.wants(vma, policy);
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
        refused(survey.busy > 0, Refusal::Busy)?;
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
