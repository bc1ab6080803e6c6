//! Answers for huge pages, which are mapped whole.

use super::answer::Stop;
use super::bytes::{PageBytes, fill_frames};
use super::fault::Page;
use crate::addr::{FrameRange, VirtAddr};
use crate::error::UserfaultError;
use crate::filemap::HugePage;
use crate::platform::Platform;
use crate::vm::fault::{Access, Caller, FaultKind, Step, leaf_flags};
use crate::vm::mm::Mm;
use crate::vm::vma::Vma;

impl<P: Platform> Mm<'_, P> {
    /// A page that `fill` fills. The lock is held for reading.
    pub(super) fn copy_huge(
        &self,
        vma: &Vma,
        at: VirtAddr,
        fill: &mut dyn FnMut(u64, &mut PageBytes),
    ) -> Result<u64, Stop> {
        let Some(place) = self.place_of(vma, at) else { return Err(Stop::Again) };
        self.check_vacant(vma, at)?;
        self.tables().prepare(at, place.size.leaf())?;
        let (memory, node) = (self.memory, place.file.node());
        let fill = |frame| {
            // SAFETY: invariant 1: the page was just taken from its pool, and nobody else knows it.
            unsafe { fill_frames(memory.platform(), FrameRange::folio(frame, place.size.order()), fill) };
            Ok(())
        };
        let step = if vma.attributes.is_private() {
            let own = self.own_page(vma, &place, true, fill)?;
            self.map_own(vma, &place, &own, FaultKind::Anon)?
        } else {
            let promised = memory.files().huge_page(memory.platform(), node, place.index);
            let promised = matches!(promised, Some(HugePage::Promised { .. }));
            let account = self.account_of(&vma.attributes);
            let frame = memory.fill_huge(node, (place.size, place.index), (account, promised), fill)?;
            self.map_huge(&place, frame, leaf_flags(&vma.attributes, true), FaultKind::FileMinor)?
        };
        finished(step)
    }

    /// A page of zeroes, as a fault would bring it.
    pub(super) fn zero_huge(&self, vma: &Vma, at: VirtAddr) -> Result<u64, Stop> {
        self.check_vacant(vma, at)?;
        self.fault_in_huge(vma, at)
    }

    /// The page that the file has.
    pub(super) fn resume_huge(&self, vma: &Vma, at: VirtAddr) -> Result<u64, Stop> {
        if vma.attributes.is_private() {
            return Err(UserfaultError::Invalid.into());
        }
        if !self.tables().lookup(at).entry.is_empty() {
            return Err(UserfaultError::Exists.into());
        }
        match self.memory.page_behind(vma, at) {
            // Of a page that is lost the fault says so.
            Page::There | Page::None => self.fault_in_huge(vma, at),
            Page::Absent => Err(UserfaultError::NotThere.into()),
        }
    }

    fn fault_in_huge(&self, vma: &Vma, at: VirtAddr) -> Result<u64, Stop> {
        let bytes = vma.attributes.huge_size().map_or(0, crate::hugetlb::HugeSize::bytes);
        finished(self.fault_huge(vma, at, Access::Read, Caller::Populate { bytes })?)
    }
}

/// How long the page is that a step of a fault has mapped.
fn finished(step: Step) -> Result<u64, Stop> {
    match step {
        Step::Done(outcome) => Ok(outcome.order.bytes()),
        step => Err(Stop::Step(step)),
    }
}
