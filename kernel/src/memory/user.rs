//! The kernel's access to a program's memory.
//!
//! A copy runs until it faults, which it does where the program's own access would. The fault does not run Quire in
//! the trap handler: it ends the copy, and the caller, an ordinary task with interrupts on, asks for the page and
//! goes on.

use core::ops::Range;

use quire::addr::VirtAddr;
use quire::arch::{CpuFeatures, PagingMode};
use quire::vm::Access;
use quire_interop::user_memory;
use spin::Once;

use super::manager::Space;
use crate::errno::Errno;

/// The copies, which depend on the processor.
static COPIES: Once<user_memory::UserMemory> = Once::new();

/// The most bytes of one copy: a copy that faults clears what is missing of its target.
const PART: usize = 64 << 10;

/// The memory of the program whose address space is switched in.
#[derive(Clone, Copy)]
pub struct UserMemory<'s> {
    space: &'s Space,
    copies: user_memory::UserMemory,
}

impl<'s> UserMemory<'s> {
    /// The memory of the address space, which is switched in.
    pub fn of(space: &'s Space) -> Self {
        // SAFETY: the lower half holds memory of programs alone, and the kernel requires SMAP (K2, K3).
        let detected =
            || unsafe { user_memory::UserMemory::new(PagingMode::FourLevel, CpuFeatures::detect(), true) };
        Self { space, copies: *COPIES.call_once(detected) }
    }

    /// Copies from the program.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] where the program itself could not read.
    pub fn read(self, from: VirtAddr, to: &mut [u8]) -> Result<(), Errno> {
        self.transfer(from, to.len(), Access::Read, |user, part| {
            self.copies.copy_from_user(&mut to[part], user)
        })
    }

    /// Copies to the program.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] where the program itself could not store.
    pub fn write(self, to: VirtAddr, from: &[u8]) -> Result<(), Errno> {
        self.transfer(to, from.len(), Access::Write, |user, part| self.copies.copy_to_user(user, &from[part]))
    }

    /// Calls `copy` for parts of the range, with the program's address and the part's place in the kernel's buffer. It
    /// returns how many bytes were left when it faulted.
    fn transfer(
        self,
        user: VirtAddr,
        bytes: usize,
        access: Access,
        mut copy: impl FnMut(VirtAddr, Range<usize>) -> usize,
    ) -> Result<(), Errno> {
        let end = user.0.checked_add(bytes as u64).ok_or(Errno::EFAULT)?;
        if end > self.space.layout().user.end.0 {
            return Err(Errno::EFAULT);
        }
        let mut done = 0;
        while done < bytes {
            let part = done..bytes.min(done + PART);
            let missing = copy(user.add(done as u64), part.clone());
            done = part.end - missing;
            if missing > 0 {
                self.space.fault(user.add(done as u64), access).map_err(|_| Errno::EFAULT)?;
            }
        }
        Ok(())
    }
}
