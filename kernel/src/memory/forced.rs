//! A debugger's access to a program's memory: also where the program itself may not read or store (`FOLL_FORCE` in
//! Linux). What it stores goes to a copy if the memory is private, and fails if it is shared.
//!
//! For the length of such a copy the page's mapping allows the access to the program too. A program that changes the
//! mapping meanwhile keeps what it has set.

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::filemap::FileKind;
use quire::limits::FRAME_SIZE;
use quire::vm::VmaInfo;
use quire::vm::vma::VmaFlags;

use super::manager::Space;
use super::user::UserMemory;
use crate::errno::Errno;
use crate::task::sched;

/// The memory of a program.
pub struct ForcedMemory<'s> {
    memory: UserMemory<'s>,
    space: &'s Space,
}

impl<'s> ForcedMemory<'s> {
    /// That of an address space, while the running task's own is switched in.
    pub fn of(space: &'s Space) -> Self {
        let own = sched::current_ref().space();
        let is_own = core::ptr::eq(own, space);
        let memory = if is_own { UserMemory::of(space) } else { UserMemory::of_other(own, space) };
        Self { memory, space }
    }

    /// Reads bytes of one page.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn read(&self, from: VirtAddr, to: &mut [u8]) -> Result<(), Errno> {
        self.memory.read(from, to).or_else(|errno| {
            let vma = self.mapping(from).filter(|vma| vma.protection == Protection::NONE).ok_or(errno)?;
            self.with_right(from, &vma, Protection::READ, || self.memory.read(from, to))
        })
    }

    /// Stores bytes to one page.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn write(&self, to: VirtAddr, from: &[u8]) -> Result<(), Errno> {
        self.memory.write(to, from).or_else(|errno| {
            let has_copies = |vma: &VmaInfo| {
                !vma.flags.contains(VmaFlags::SHARED) && !matches!(vma.file, Some((FileKind::Huge { .. }, _)))
            };
            let is_forbidden = |vma: &VmaInfo| !vma.protection.contains(Protection::WRITE);
            let vma = self.mapping(to).filter(|vma| has_copies(vma) && is_forbidden(vma)).ok_or(errno)?;
            self.with_right(to, &vma, Protection::WRITE, || self.memory.write(to, from))
        })
    }

    fn mapping(&self, at: VirtAddr) -> Option<VmaInfo> {
        self.space.next_vma(at).filter(|vma| vma.range.contains(at))
    }

    /// Copies while the page's mapping has one more right.
    fn with_right(
        &self,
        at: VirtAddr,
        vma: &VmaInfo,
        right: Protection,
        copy: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !vma.may.contains(right) {
            return Err(Errno::EFAULT);
        }
        let bytes = match vma.file {
            Some((FileKind::Huge { order, .. }, _)) => order.bytes(),
            _ => FRAME_SIZE,
        };
        let (page, wider) = (at.align_down(bytes), vma.protection.union(Protection::READ).union(right));
        self.space.mprotect(page, bytes, wider)?;
        let copied = copy();
        // Unless the program has set something else.
        if self.mapping(at).is_some_and(|now| now.protection == wider) {
            self.space.mprotect(page, bytes, vma.protection)?;
        }
        copied
    }
}
