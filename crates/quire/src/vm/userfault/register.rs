//! Registers ranges with handlers.
#![forbid(unsafe_code)]

use super::changes::Handlers;
use super::handle::Userfault;
use super::registration::{Registration, UserfaultModes};
use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::filemap::FileKind;
use crate::hugetlb::HugeSize;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::Space;
use crate::vm::tree::VmaList;
use crate::vm::tree::edit::{self, Spares};
use crate::vm::verbs::change::AttributeChange;

handle! {
    /// The registrations of an address space's ranges with handlers.
    Registrations of AddressSpace
}

impl<P: Platform> Registrations<'_, '_, P> {
    /// See [`Mm::userfault_register`](crate::vm::Mm::userfault_register).
    pub(in crate::vm) fn userfault_register(
        self,
        handler: &Userfault<'_, P>,
        addr: VirtAddr,
        len: u64,
        modes: UserfaultModes,
    ) -> Result<(), MmError> {
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        let registration = handler.registration().with_modes(modes);
        let whole = VirtRange { start: addr, end: VirtAddr(addr.0.saturating_add(len)) };
        let space = PoolFaults::of(self.0).lock_whole(whole);
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
        self.remove_empty_tables(&space, range);
        self.set_handler(space, range, registration)
    }

    /// Removes the empty tables that pieces of pages of 1 GiB left: a handler's answer maps such a page by
    /// one leaf.
    fn remove_empty_tables(self, space: &Space, range: VirtRange) {
        let gigantic = |vma: &&Vma| {
            vma.attributes.huge_size() == Some(HugeSize::Size1G)
                && !vma.attributes.is_private()
                && !vma.attributes.flags.contains(VmaFlags::SPLIT)
        };
        for vma in space.tree.overlapping(range).filter(gigantic) {
            FileClears::of(self.memory).remove_empty_tables(self.body(), vma.range.intersect(range));
        }
    }

    /// See [`Mm::userfault_unregister`](crate::vm::Mm::userfault_unregister).
    pub(in crate::vm) fn userfault_unregister(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        let space = self.lock();
        let range = registrable(&space, addr, len)?;
        self.set_handler(space, range, Registration::NONE)
    }

    /// See [`Mm::userfault_adopt`](crate::vm::Mm::userfault_adopt).
    pub(in crate::vm) fn userfault_adopt(self, handler: &Userfault<'_, P>) -> Result<u64, MmError> {
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
                // A change of whole mappings needs no spare nodes.
                let changed = edit::change(&mut space.tree, range, &mut Spares::new(), &mut gone, adopt);
                debug_assert!(changed, "{range:?} is one mapping");
                bytes += range.len();
            }
        }
        drop(space);
        self.memory.discard_list(gone);
        Ok(bytes)
    }

    /// See [`Mm::userfault_hand_over`](crate::vm::Mm::userfault_hand_over).
    pub(in crate::vm) fn userfault_hand_over(
        self,
        from: &Userfault<'_, P>,
        to: Option<&Userfault<'_, P>>,
    ) -> Result<u64, MmError> {
        let (mut at, mut bytes) = (VirtAddr(0), 0);
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        // Ranges of a closed handler would fail every fault.
        if to.is_some_and(|to| !contexts.is_open(platform, to.registration())) {
            return Err(MmError::Invalid);
        }
        loop {
            let space = self.lock();
            let mut rest = space.tree.overlapping(VirtRange::new(at, space.layout.user.end));
            let found = rest.find(|vma| {
                vma.attributes.handler.is_some() && vma.attributes.handler.is_of(from.registration())
            });
            let Some((range, modes)) = found.map(|vma| (vma.range, vma.attributes.handler.modes())) else {
                return Ok(bytes);
            };
            drop(rest);
            let new = to.map_or(Registration::NONE, |to| to.registration().with_modes(modes));
            self.set_handler(space, range, new)?;
            (at, bytes) = (range.end, bytes + range.len());
        }
    }

    fn set_handler(
        self,
        mut space: SpaceGuard<'_, P>,
        range: VirtRange,
        registration: Registration,
    ) -> Result<(), MmError> {
        let before = Handlers::of(&space, range);
        // No handler would be told of stores to marked pages any more, so the marks are removed. The tables
        // must be unshared for that; the change below cuts large leaves at the ends.
        let unmark = !registration.catches(UserfaultModes::WRITE_PROTECT) && self.context().has_marks();
        if unmark {
            self.unshare(range)?;
        }
        let mut gone = VmaList::new();
        let changed = AttributeChange::of(self.0)
            .change_range(&mut space, range, &mut gone, |vma| vma.handler = registration);
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

    /// Notes with each file that is mapped in the range that a handler watches for missing pages, where one
    /// does. The caller holds the lock for writing.
    pub(in crate::vm) fn tell_files(self, space: &Space, range: VirtRange) {
        let watched = |vma: &&Vma| vma.attributes.handler.catches(UserfaultModes::MISSING);
        for vma in space.tree.overlapping(range).filter(watched) {
            if let Backing::File { file, .. } = &vma.attributes.backing {
                file.node().note_watched(self.memory.platform());
            }
        }
    }

    /// Wakes the tasks that wait on these handlers for a page of the range. The caller holds no lock.
    pub(super) fn wake_all(self, handlers: &Handlers, range: VirtRange) {
        for handler in handlers.iter() {
            self.memory.userfaults().answer(self.memory.platform(), handler, self.number(), range);
        }
    }
}

/// The range, if it may be registered: it is of whole pages, and something is mapped in it.
fn registrable(space: &Space, addr: VirtAddr, len: u64) -> Result<VirtRange, MmError> {
    let range = space.layout.range(addr, len).filter(|range| range.len() == len && len > 0);
    let range = range.filter(|_| addr.is_aligned(FRAME_SIZE)).ok_or(MmError::Invalid)?;
    check_ends(space, range)?;
    space.tree.first_in(range).map(|_| range).ok_or(MmError::Invalid)
}

/// Whether a mapping supports all of these modes.
fn can_have(vma: &VmaAttributes, modes: UserfaultModes) -> bool {
    let (missing, minor) = match &vma.backing {
        Backing::Anonymous => (true, false),
        Backing::File { file, .. } => match file.node().kind() {
            FileKind::Paged(_) => (false, true),
            FileKind::Shmem { .. } => (true, true),
            FileKind::Huge { .. } => (true, !vma.is_private()),
        },
    };
    (missing || !modes.contains(UserfaultModes::MISSING)) && (minor || !modes.contains(UserfaultModes::MINOR))
}
