//! Which ranges have which handler.
#![forbid(unsafe_code)]

use super::changes::Handlers;
use super::handle::Userfault;
use super::registration::{Registration, UserfaultModes};
use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::filemap::FileKind;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::hugetlb::mapping::check_ends;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes};
use crate::vm::space::mm::{Mm, Space, SpaceGuard};
use crate::vm::tree::VmaList;
use crate::vm::tree::edit::{self, Spares};

impl<P: Platform> Mm<'_, P> {
    /// Has this handler told of faults on `len` bytes from `addr`: what `modes` says, and nothing else. All mappings in the range
    /// are registered, and holes are passed over. What is mapped already stays; who waits for a page of the range with the
    /// same handler faults anew. As `UFFDIO_REGISTER`. The caller holds no lock.
    ///
    /// Private anonymous memory has no [`MINOR`](UserfaultModes::MINOR), nor have private huge pages; files of the pager have no
    /// [`MISSING`](UserfaultModes::MISSING), since the pager is who is asked: there a fault on what is not mapped is minor, whether
    /// the page is in memory or not.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned or empty range, one that ends inside a huge page or in which nothing is mapped, no
    /// modes, modes that a mapping cannot have, and a handler that was closed; [`MmError::Busy`] when another one is registered
    /// for a part of it; [`MmError::NoMemory`]. Nothing has changed then.
    pub fn userfault_register(
        &self,
        handler: &Userfault<'_, P>,
        addr: VirtAddr,
        len: u64,
        modes: UserfaultModes,
    ) -> Result<(), MmError> {
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        let registration = handler.registration().with_modes(modes);
        let space = self.lock();
        let range = registrable(&space, addr, len)?;
        if !contexts.is_open(platform, registration) || !registration.is_some() {
            return Err(MmError::Invalid);
        }
        for vma in space.tree.overlapping(range) {
            let other = vma.attributes.handler;
            if !can_have(&vma.attributes, modes) {
                return Err(MmError::Invalid);
            }
            if other.is_some() && !other.is_of(registration) && contexts.is_open(platform, other) {
                return Err(MmError::Busy);
            }
        }
        if modes.contains(UserfaultModes::WRITE_PROTECT) {
            self.context().note_marks();
        }
        self.set_handler(space, range, registration)
    }

    /// Ends that a handler is told of faults on `len` bytes from `addr`. Marks of write protection are taken off, and who waits
    /// for a page of the range faults anew. As `UFFDIO_UNREGISTER`. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] as for [`Self::userfault_register`]; [`MmError::NoMemory`]. Nothing has changed then.
    pub fn userfault_unregister(&self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        let space = self.lock();
        let range = registrable(&space, addr, len)?;
        self.set_handler(space, range, Registration::NONE)
    }

    /// Makes this handler that of every mapping whose own one is gone, with the modes that it has. How many bytes that are. The
    /// caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a handler that was closed.
    pub fn userfault_adopt(&self, handler: &Userfault<'_, P>) -> Result<u64, MmError> {
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        let registration = handler.registration();
        if !contexts.is_open(platform, registration) {
            return Err(MmError::Invalid);
        }
        let mut space = self.lock();
        let (mut gone, mut bytes, mut at) = (VmaList::new(), 0, VirtAddr(0));
        while let Some(vma) = space.tree.find_from(at) {
            let (range, old) = (vma.range, vma.attributes.handler);
            at = range.end;
            if old.is_some() && !contexts.is_open(platform, old) {
                let adopt = |vma: &mut VmaAttributes| vma.handler = registration.with_modes(old.modes());
                // Whole mappings need no spare nodes.
                let changed = edit::change(&mut space.tree, range, &mut Spares::new(), &mut gone, adopt);
                debug_assert!(changed, "{range:?} is one mapping");
                bytes += range.len();
            }
        }
        drop(space);
        self.memory.discard_list(gone);
        Ok(bytes)
    }

    fn set_handler(
        &self,
        mut space: SpaceGuard<'_, P>,
        range: VirtRange,
        registration: Registration,
    ) -> Result<(), MmError> {
        let before = Handlers::of(&space, range);
        // Marks go where nobody would be told of them any more. Tables of our own for that come first; the
        // change below cuts large leaves at the ends.
        let unmark = !registration.catches(UserfaultModes::WRITE_PROTECT) && self.context().has_marks();
        if unmark {
            self.unshare(range)?;
        }
        let mut gone = VmaList::new();
        let changed = self.change_range(&mut space, range, &mut gone, |vma| vma.handler = registration);
        if changed.is_ok() {
            space.handled |= registration.is_some();
            self.tell_files(&space, range);
            if unmark {
                let done = self.tables().unmark_write_protected(range);
                debug_assert_eq!(done, Ok(()), "the ends of {range:?} were cut before");
            }
        }
        drop(space);
        self.memory.discard_list(gone);
        changed?;
        self.wake_all(&before, range);
        Ok(())
    }

    /// Says to the files that are mapped in a range with a handler who wants to hear of missing pages that there is one. The lock is
    /// held for writing.
    pub(in crate::vm) fn tell_files(&self, space: &Space, range: VirtRange) {
        let watched = |vma: &&Vma| vma.attributes.handler.catches(UserfaultModes::MISSING);
        for vma in space.tree.overlapping(range).filter(watched) {
            if let Backing::File { file, .. } = &vma.attributes.backing {
                file.node().note_watched(self.memory.platform());
            }
        }
    }

    /// Lets those go on who wait for a page of the range with one of these handlers.
    pub(super) fn wake_all(&self, handlers: &Handlers, range: VirtRange) {
        for handler in handlers.iter() {
            self.memory.userfaults().answer(self.memory.platform(), handler, self.number(), range);
        }
    }
}

/// A range that may be registered: of whole pages, with something mapped in it.
fn registrable(space: &Space, addr: VirtAddr, len: u64) -> Result<VirtRange, MmError> {
    let range = space.layout.range(addr, len).filter(|range| range.len() == len && len > 0);
    let range = range.filter(|_| addr.is_aligned(FRAME_SIZE)).ok_or(MmError::Invalid)?;
    check_ends(space, range)?;
    space.tree.first_in(range).map(|_| range).ok_or(MmError::Invalid)
}

/// Whether a mapping can have a handler that hears of this.
fn can_have(vma: &VmaAttributes, modes: UserfaultModes) -> bool {
    let (missing, minor) = match &vma.backing {
        Backing::Anonymous => (true, false),
        Backing::File { file, .. } => match file.node().kind() {
            FileKind::Paged(_) => (false, true),
            FileKind::Nameless { .. } => (true, true),
            FileKind::Huge { .. } => (true, !vma.is_private()),
        },
    };
    (missing || !modes.contains(UserfaultModes::MISSING)) && (minor || !modes.contains(UserfaultModes::MINOR))
}
