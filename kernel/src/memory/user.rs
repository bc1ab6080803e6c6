//! The kernel's access to a program's memory.
//!
//! A copy runs until it faults. The fault does not run Quire in the trap handler: it ends the copy, and the caller,
//! an ordinary task with interrupts on, asks for the page and goes on.

use quire::addr::VirtAddr;
use quire::vm::Access;

use super::manager::Space;
use crate::cpu::stubs::copy_across;
use crate::syscall::errno::Errno;

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
    /// [`Errno::Fault`] where the program itself could not read.
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
    /// [`Errno::Fault`] where the program itself could not store.
    pub fn write(self, to: VirtAddr, from: &[u8]) -> Result<(), Errno> {
        let kernel = from.as_ptr();
        self.transfer(to, from.len(), Access::Write, |user, done, bytes| {
            // SAFETY: `transfer` calls with parts of the buffer and of the user half.
            unsafe { copy_across(core::ptr::with_exposed_provenance_mut(user), kernel.add(done), bytes) }
        })
    }

    /// Calls `copy` with the program's address, the bytes done and the bytes left, until none is left. It returns how
    /// many were left when it faulted.
    fn transfer(
        self,
        user: VirtAddr,
        bytes: usize,
        access: Access,
        mut copy: impl FnMut(usize, usize, usize) -> usize,
    ) -> Result<(), Errno> {
        let end = user.0.checked_add(bytes as u64).ok_or(Errno::Fault)?;
        if end > self.space.layout().user.end.0 {
            return Err(Errno::Fault);
        }
        let mut done = 0;
        while done < bytes {
            done = bytes - copy(user.0 as usize + done, done, bytes - done);
            if done < bytes {
                self.space.fault(user.add(done as u64), access).map_err(|_| Errno::Fault)?;
            }
        }
        Ok(())
    }
}
