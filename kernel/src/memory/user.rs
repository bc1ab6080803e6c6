//! The kernel's access to a program's memory.
//!
//! Each leaf is looked up before it is used, because the processor does not check the program's rights for the
//! kernel: a leaf without any access (`PROT_NONE`) is present, and only forbids user mode.
//!
//! A copy runs until it faults. The fault does not run Quire in the trap handler: it ends the copy, and the caller,
//! an ordinary task with interrupts on, asks for the page and goes on.

use quire::addr::VirtAddr;
use quire::vm::Access;

use super::manager::Space;
use crate::cpu::stubs::copy_across;
use crate::errno::Errno;

/// The memory of the program whose address space is switched in.
#[derive(Clone, Copy)]
pub struct UserMemory<'s> {
    space: &'s Space,
}

impl<'s> UserMemory<'s> {
    /// The memory of the address space, which is switched in.
    pub fn of(space: &'s Space) -> Self {
        Self { space }
    }

    /// Copies from the program.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] where the program itself could not read.
    pub fn read(self, from: VirtAddr, to: &mut [u8]) -> Result<(), Errno> {
        let kernel = to.as_mut_ptr();
        self.transfer(from, to.len(), Access::Read, |user, done, bytes| {
            // SAFETY: `transfer` calls with parts of the buffer and of the user half.
            unsafe { copy_across(kernel.add(done), core::ptr::with_exposed_provenance(user), bytes) }
        })
    }

    /// Copies to the program.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] where the program itself could not store.
    pub fn write(self, to: VirtAddr, from: &[u8]) -> Result<(), Errno> {
        let kernel = from.as_ptr();
        self.transfer(to, from.len(), Access::Write, |user, done, bytes| {
            // SAFETY: `transfer` calls with parts of the buffer and of the user half.
            unsafe { copy_across(core::ptr::with_exposed_provenance_mut(user), kernel.add(done), bytes) }
        })
    }

    /// Calls `copy` for parts of the range, each in one leaf, with the program's address, the bytes done before and
    /// the bytes of the part. It returns how many of these were left when it faulted.
    fn transfer(
        self,
        user: VirtAddr,
        bytes: usize,
        access: Access,
        mut copy: impl FnMut(usize, usize, usize) -> usize,
    ) -> Result<(), Errno> {
        let end = user.0.checked_add(bytes as u64).ok_or(Errno::EFAULT)?;
        if end > self.space.layout().user.end.0 {
            return Err(Errno::EFAULT);
        }
        let mut done = 0;
        while done < bytes {
            let at = user.add(done as u64);
            let Some(leaf) = self.space.translate(at, access) else {
                self.space.fault(at, access).map_err(|_| Errno::EFAULT)?;
                continue;
            };
            let to_leaf_end = leaf.addr.0 + leaf.size.bytes() - at.0;
            let part = to_leaf_end.min((bytes - done) as u64) as usize;
            done += part - copy(at.0 as usize, done, part);
        }
        Ok(())
    }
}
