//! The advices that mappings keep, and the folio sizes of a range.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::platform::Platform;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::mapping::policy::{FolioOverride, HugeAdvice};
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::verbs::change::{AttributeChange, covers};
use crate::vm::verbs::madvise::{Advice, Madvise, prefix};

/// What a mapping may say about the order in which its pages are touched.
const ORDER: VmaFlags = VmaFlags::RANDOM.union(VmaFlags::SEQUENTIAL);

impl<P: Platform> Madvise<'_, '_, P> {
    /// Follows an advice that changes attributes of mappings and nothing else.
    pub(super) fn advise_attributes(self, range: VirtRange, advice: Advice) -> Result<(), MmError> {
        match advice {
            Advice::HugePage => self.advise_where(range, |_| true, |vma| vma.advice = HugeAdvice::Huge),
            Advice::NoHugePage => self.advise_where(range, |_| true, |vma| vma.advice = HugeAdvice::NoHuge),
            Advice::Split => self.split_pages(range),
            Advice::WipeOnFork => self.wipe_on_fork(range),
            Advice::Normal => self.set_flags(range, ORDER, VmaFlags::NONE),
            Advice::Random => self.set_flags(range, ORDER, VmaFlags::RANDOM),
            Advice::Sequential => self.set_flags(range, ORDER, VmaFlags::SEQUENTIAL),
            Advice::DontFork => self.set_flags(range, VmaFlags::NONE, VmaFlags::NOT_FORKED),
            Advice::DoFork => self.set_flags(range, VmaFlags::NOT_FORKED, VmaFlags::NONE),
            Advice::KeepOnFork => self.set_flags(range, VmaFlags::WIPED_ON_FORK, VmaFlags::NONE),
            Advice::DontDump => self.set_flags(range, VmaFlags::NONE, VmaFlags::NOT_DUMPED),
            Advice::DoDump => self.set_flags(range, VmaFlags::NOT_DUMPED, VmaFlags::NONE),
            _ => unreachable!("{advice:?} is no attribute"),
        }
    }

    pub(in crate::vm) fn set_folios(
        self,
        addr: VirtAddr,
        len: u64,
        folios: FolioOverride,
    ) -> Result<(), MmError> {
        let range = self.layout().range(addr, len).ok_or(MmError::Invalid)?;
        self.advise_where(range, |_| true, |vma| vma.folios = folios)
    }

    /// Changes the attributes of mappings up to the first that does not suit.
    fn advise_where(
        self,
        range: VirtRange,
        suits: impl Fn(&VmaAttributes) -> bool,
        change: impl FnMut(&mut VmaAttributes),
    ) -> Result<(), MmError> {
        let space = self.lock();
        let covered = covers(&space, range);
        let range = range.intersect(space.layout.user);
        let (range, outcome) = prefix(space.tree.overlapping(range), range, suits);
        if range.is_empty() {
            return outcome.and(covered);
        }
        check_ends(&space, range)?;
        AttributeChange::of(self.0).change_and_unlock(space, range, change)?;
        outcome.and(covered)
    }

    fn set_flags(self, range: VirtRange, clear: VmaFlags, set: VmaFlags) -> Result<(), MmError> {
        self.advise_where(range, |_| true, |vma| vma.flags = vma.flags.without(clear).union(set))
    }

    fn wipe_on_fork(self, range: VirtRange) -> Result<(), MmError> {
        let wipe = |vma: &mut VmaAttributes| vma.flags = vma.flags.union(VmaFlags::WIPED_ON_FORK);
        self.advise_where(range, |vma| vma.is_anonymous() && vma.is_private(), wipe)
    }

    /// `MADV_SPLIT`, for all mappings in the range or for none. Waits until no task has one of the files
    /// closed, after it noted that their pages may get parts: a move closes its file before it looks for
    /// that, and pins memory then. A call that is refused at once notes nothing, and waits for no task.
    fn split_pages(self, range: VirtRange) -> Result<(), MmError> {
        let fits = |vma: &Vma| vma.attributes.huge_size().is_some() && !vma.attributes.is_private();
        let space = loop {
            let space = self.lock();
            covers(&space, range)?;
            check_ends(&space, range)?;
            if !space.tree.overlapping(range).all(fits) {
                return Err(MmError::Invalid);
            }
            if space.tree.overlapping(range).all(allow_parts) {
                break space;
            }
            drop(space);
            self.memory.platform().relax();
        };
        let allow = |vma: &mut VmaAttributes| vma.flags = vma.flags.union(VmaFlags::SPLIT);
        AttributeChange::of(self.0).change_and_unlock(space, range, allow)
    }
}

/// Allows parts of a file's huge pages. Returns whether no task has the file closed that may not have seen
/// this.
fn allow_parts(vma: &Vma) -> bool {
    match &vma.attributes.backing {
        Backing::File { file, .. } if file.node().huge_order().is_some() => {
            file.node().allow_parts();
            file.node().enter().is_some()
        }
        _ => true,
    }
}
