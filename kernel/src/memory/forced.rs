//! A debugger's access to a program's memory: also where the program itself may not read or store (`FOLL_FORCE` in
//! Linux). What it stores goes to a copy if the memory is private, and fails if it is shared.
//!
//! For the length of such a copy the page's mapping allows the access to the program too. A program that changes the
//! mapping meanwhile keeps what it has set, unless it sets exactly the rights that the copy has set: these are
//! taken back. A process that shares the memory sees the right too, also during a core dump.
//!
//! In each address space one copy at a time borrows a right, and none during a `fork`: a second one, or the
//! child, would take the wider rights for the program's own.

use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::filemap::FileKind;
use quire::limits::FRAME_SIZE;
use quire::vm::VmaInfo;
use quire::vm::vma::VmaFlags;

use super::list;
use super::manager::Space;
use super::user::UserMemory;
use crate::errno::Errno;
use crate::sync::Mutex;
use crate::task::sched;
use crate::task::wait::WaitQueue;

/// The address spaces that are [`Steady`], by their numbers.
static STEADY: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static FREED: WaitQueue = WaitQueue::new();

/// While this exists, no other copy borrows a right in an address space. A copy may sleep meanwhile, for a handler
/// of faults also without an end, so spaces do not wait for each other.
pub struct Steady(u64);

impl Steady {
    /// Waits for others that have the space so.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; [`Errno::EINTR`] if the running task is to end.
    pub fn begin(space: &Space) -> Result<Self, Errno> {
        let number = space.number();
        FREED.wait_uninterruptible(|| {
            let mut spaces = STEADY.lock();
            if !spaces.contains(&number) {
                return Some(list::append(&mut spaces, [number]));
            }
            sched::current_ref().is_dying().then_some(Err(Errno::EINTR))
        })?;
        Ok(Self(number))
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        STEADY.lock().retain(|number| *number != self.0);
        FREED.wake_all();
    }
}

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
            let _steady = Steady::begin(self.space)?;
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
            let _steady = Steady::begin(self.space)?;
            let vma = self.mapping(to).filter(|vma| has_copies(vma) && is_forbidden(vma)).ok_or(errno)?;
            self.with_right(to, &vma, Protection::WRITE, || self.memory.write(to, from))
        })
    }

    fn mapping(&self, at: VirtAddr) -> Option<VmaInfo> {
        self.space.next_vma(at).filter(|vma| vma.range.contains(at))
    }

    /// Copies while the page's mapping has one more right. The space is [`Steady`].
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
