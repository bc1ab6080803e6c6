//! The kernel's access to a program's memory.
//!
//! A copy runs until it faults, which it does where the program's own access would. The fault does not run Quire in
//! the trap handler: it ends the copy, and the caller, an ordinary task with interrupts on, asks for the page and
//! goes on.

use alloc::vec::Vec;
use core::ops::Range;

use quire::addr::VirtAddr;
use quire::arch::CpuFeatures;
use quire::error::FaultError;
use quire::vm::Access;
use quire_interop::user_memory;
use spin::Once;

use super::list;
use super::manager::{self, Space};
use crate::errno::Errno;
use crate::observe::usage::note_fault;
use crate::task::{oom, sched};

/// The copies, which depend on the processor.
static COPIES: Once<user_memory::UserMemory> = Once::new();

/// The most bytes of one copy: a copy that faults clears what is missing of its target.
const PART: usize = 64 << 10;

/// The memory of a program.
#[derive(Clone, Copy)]
pub struct UserMemory<'s> {
    space: &'s Space,
    /// The address space that is switched in.
    loaded: &'s Space,
    copies: user_memory::UserMemory,
}

impl<'s> UserMemory<'s> {
    /// The memory of the address space, which is switched in.
    pub fn of(space: &'s Space) -> Self {
        // SAFETY: the lower half holds memory of programs alone, and the kernel requires SMAP (K2, K3).
        let detected =
            || unsafe { user_memory::UserMemory::new(manager::paging(), CpuFeatures::detect(), true) };
        Self { space, loaded: space, copies: *COPIES.call_once(detected) }
    }

    /// The memory of another address space than `loaded`, which is switched in.
    pub fn of_other(loaded: &'s Space, space: &'s Space) -> Self {
        Self { space, loaded, ..Self::of(loaded) }
    }

    /// The end of the addresses that programs may have.
    pub fn end(self) -> VirtAddr {
        self.space.layout().user.end
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

    /// A number of four bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_u32(self, from: VirtAddr) -> Result<u32, Errno> {
        let mut bytes = [0; 4];
        self.read(from, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_u64(self, from: VirtAddr) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        self.read(from, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Changes a number of four bytes in one atomic step, as `change` says, until it returns `None`. Returns the last
    /// value that was found.
    ///
    /// # Errors
    /// As [`Self::write`]; [`Errno::EINVAL`] for an address that is not a multiple of 4.
    pub fn update_u32(self, at: VirtAddr, change: impl Fn(u32) -> Option<u32>) -> Result<u32, Errno> {
        // The exchange below would refuse it again and again, with a page that is there.
        if !at.is_aligned(4) {
            return Err(Errno::EINVAL);
        }
        let mut found = self.read_u32(at)?;
        while let Some(new) = change(found) {
            match self.copies.compare_exchange_u32(at, found, new) {
                Ok(now) if now == found => break,
                Ok(now) => found = now,
                Err(_) => self.bring_in(at, Access::Write)?,
            }
        }
        Ok(found)
    }

    /// Exchanges a number of four bytes if it is `expected`, and returns what was found. `None` where that would fault: the
    /// caller may hold a spin lock.
    pub fn exchange_u32(self, at: VirtAddr, expected: u32, new: u32) -> Option<u32> {
        self.copies.compare_exchange_u32(at, expected, new).ok()
    }

    /// The bytes up to a zero, which is not among them.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Errno::ENOMEM`]; `too_long` when there is no zero among the first `most`.
    pub fn read_string(self, from: VirtAddr, most: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        let mut string = Vec::new();
        let mut chunk = [0; 64];
        while string.len() < most {
            let at = from.0.checked_add(string.len() as u64).ok_or(Errno::EFAULT)?;
            // Chunks end where a line of the cache does, so no chunk crosses into a page without need.
            let part = &mut chunk[..64 - (at % 64) as usize];
            self.read(VirtAddr(at), part)?;
            let end = part.iter().position(|&byte| byte == 0);
            let found = &part[..end.unwrap_or(part.len())];
            list::reserve(&mut string, found.len())?;
            string.extend_from_slice(found);
            if end.is_some() {
                return if string.len() < most { Ok(string) } else { Err(too_long) };
            }
        }
        Err(too_long)
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
            // The copy never sleeps: so this task stays here, and another address space may be loaded for its length.
            self.loaded.switch_to(self.space);
            let missing = copy(user.add(done as u64), part.clone());
            self.space.switch_to(self.loaded);
            if oom::is_discarded(self.space) {
                return Err(Errno::EFAULT);
            }
            done = part.end - missing;
            if missing > 0 {
                self.bring_in(user.add(done as u64), access)?;
            }
        }
        Ok(())
    }

    /// Lets Quire make an access possible.
    fn bring_in(self, at: VirtAddr, access: Access) -> Result<(), Errno> {
        match self.space.fault(at, access) {
            Ok(outcome) => {
                note_fault(sched::current_ref(), outcome.kind);
                Ok(())
            }
            Err(FaultError::OutOfMemory) if !sched::current_ref().is_dying() => {
                oom::make_room(at);
                Ok(())
            }
            Err(_) => Err(Errno::EFAULT),
        }
    }
}
