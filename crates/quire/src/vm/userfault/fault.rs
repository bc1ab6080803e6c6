//! Tells a handler of a fault, and waits for its answer.
//!
//! The faulting thread takes a place while it holds the address-space lock for reading, *and then looks at
//! the page table again*. An answer maps first, and looks for waiting threads afterwards. So either the
//! thread sees the new leaf, or the answer sees the thread. A verb that unmaps under the lock for writing, or
//! cuts a file short, also looks for waiting threads afterwards. Then the thread gives the lock back, sleeps,
//! and faults anew.
#![forbid(unsafe_code)]

use super::context::{Posted, Waiting};
use super::event::{Ticket, UserfaultFault, UserfaultKind};
use super::registration::UserfaultModes;
use crate::addr::VirtAddr;
use crate::arch::Access;
use crate::arch::EntryFlags;
use crate::error::FaultError;
use crate::filemap::{FileKind, FileNode, HugePage};
use crate::hugetlb::HugeSize;
use crate::limits::FRAME_SIZE;
use crate::pgtable::Lookup;
use crate::platform::Platform;
use crate::vm::fault::step::Step;
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::userfault::changes::{FileNotices, Notices};

/// What a file has at a place.
pub(super) enum Page {
    Absent,
    /// A page, in memory or at the pager's.
    There,
    /// No page can come: it is lost, or the place is behind the file's end.
    None,
}

impl<P: Platform> Notices<'_, '_, P> {
    /// Tells the mapping's handler, if it is registered for what the walk found; returns the fault's next
    /// step then. The caller holds the lock for reading.
    pub(in crate::vm) fn tell_handler(
        self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        found: &Lookup,
    ) -> Result<Option<Step>, FaultError> {
        let Some(kind) = self.caught(vma, addr, access, found) else { return Ok(None) };
        let exact = addr;
        let addr = addr.align_down(vma.attributes.whole_size().map_or(FRAME_SIZE, HugeSize::bytes));
        let ticket = Ticket { slot: 0, round: 0 };
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        let (space, thread) = (self.number(), platform.thread_number());
        let fault = UserfaultFault { space, addr, exact, kind, access, ticket, thread };
        match contexts.post(platform, vma.attributes.handler, fault) {
            Posted::Dead => Err(FaultError::NoHandler),
            Posted::Full(waiting) => Ok(Some(Step::Handler(waiting))),
            Posted::Placed(waiting) => {
                let now = self.tables().lookup(addr);
                let still = self.caught(vma, addr, access, &now) == Some(kind);
                Ok(Some(Step::Handler(if still { waiting } else { waiting.in_vain() })))
            }
        }
    }

    /// The caller holds no lock.
    ///
    /// # Errors
    /// [`FaultError::Dying`].
    pub(in crate::vm) fn wait_for_handler(self, waiting: Waiting) -> Result<(), FaultError> {
        self.memory.userfaults().wait(self.memory.platform(), waiting)
    }

    /// The kind of fault that the handler must be told of, if any.
    fn caught(self, vma: &Vma, addr: VirtAddr, access: Access, found: &Lookup) -> Option<UserfaultKind> {
        let handler = vma.attributes.handler;
        if !found.entry.is_empty() {
            let stores = access == Access::Write && found.entry.has(EntryFlags::UFFD_WP);
            let caught = stores && handler.catches(UserfaultModes::WRITE_PROTECT);
            return caught.then_some(UserfaultKind::WriteProtected);
        }
        // Once one part of a huge page is answered the file has the page. A handler that is not registered
        // for minor faults must still be told of the other parts.
        let parts = vma.attributes.flags.contains(VmaFlags::SPLIT) && !handler.catches(UserfaultModes::MINOR);
        let (kind, mode) = match FileNotices::of(self.memory).page_behind(vma, addr) {
            Page::There if !parts => (UserfaultKind::Minor, UserfaultModes::MINOR),
            Page::Absent | Page::There => (UserfaultKind::Missing, UserfaultModes::MISSING),
            Page::None => return None,
        };
        handler.catches(mode).then_some(kind)
    }
}

impl<P: Platform> FileNotices<'_, '_, P> {
    /// What the file behind a mapping has for an unmapped address: for anonymous memory, always nothing.
    pub(super) fn page_behind(self, vma: &Vma, addr: VirtAddr) -> Page {
        let (Backing::File { file, .. }, Some(index)) = (&vma.attributes.backing, vma.file_page(addr)) else {
            return Page::Absent;
        };
        let node = file.node();
        if node.ends_before(self.platform(), index) {
            return Page::None;
        }
        match vma.attributes.huge_size() {
            Some(size) => self.huge_page_behind(vma, node, (index, size)),
            None => match self.files().is_lost(self.platform(), node, index) {
                Some(true) => Page::None,
                Some(false) => Page::There,
                // A page that is not in memory is at the pager's.
                None if matches!(node.kind(), FileKind::Paged(_)) => Page::There,
                None => Page::Absent,
            },
        }
    }

    fn huge_page_behind(self, vma: &Vma, node: &FileNode, (index, size): (u64, HugeSize)) -> Page {
        let (whole, pages) = (!vma.attributes.flags.contains(VmaFlags::SPLIT), self.pages());
        let inside = index % size.order().frames();
        match self.files().huge_page(self.platform(), node, index / size.order().frames()) {
            Some(HugePage::Present { frame, .. })
                if pages.frames().has_bad(frame) && (whole || pages.frames().is_bad(frame.add(inside))) =>
            {
                Page::None
            }
            Some(HugePage::Present { .. }) => Page::There,
            Some(HugePage::Reserved { .. }) | None => Page::Absent,
        }
    }
}
