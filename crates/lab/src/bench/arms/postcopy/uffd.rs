//! `userfaultfd(2)` and `ioctl_userfaultfd(2)`, as far as the arm `linux` needs them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_EVENT_PAGEFAULT, UFFD_FEATURE_MINOR_SHMEM, UFFD_USER_MODE_ONLY,
    UFFDIO_REGISTER_MODE_MINOR, uffd_msg, uffdio_api, uffdio_continue, uffdio_range, uffdio_register,
};
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_CONTINUE, UFFDIO_REGISTER, UFFDIO_UNREGISTER};
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// A fault handler. Dropping it unregisters all memory and wakes the waiting threads.
pub(super) struct Uffd(OwnedFd);

impl Uffd {
    /// A handler that can answer minor faults of shared memory.
    ///
    /// # Errors
    /// Those of the calls; `EINVAL` before Linux 5.14.
    pub(super) fn new() -> io::Result<Self> {
        let user = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: C1: the arm registers its own memory, which it reaches by volatile accesses alone.
        let uffd =
            Self(unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user)? });
        let features = u64::from(UFFD_FEATURE_MINOR_SHMEM);
        let mut api = uffdio_api { api: u64::from(UFFD_API), features, ioctls: 0 };
        // SAFETY: C3: the request takes this structure, which lives through the call.
        unsafe { ioctl(&uffd.0, Updater::<{ UFFDIO_API as Opcode }, _>::new(&mut api))? };
        Ok(uffd)
    }

    /// Registers these bytes for minor faults: of pages that the file has and the mapping has not.
    pub(super) fn register(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mode = u64::from(UFFDIO_REGISTER_MODE_MINOR);
        let mut register = uffdio_register { range: range(start, bytes), mode, ioctls: 0 };
        // SAFETY: C3: the request takes this structure, which lives through the call.
        unsafe { ioctl(&self.0, Updater::<{ UFFDIO_REGISTER as Opcode }, _>::new(&mut register))? };
        Ok(())
    }

    /// Unregisters these addresses; waiting threads go on.
    pub(super) fn unregister(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mut range = range(start, bytes);
        // SAFETY: C3: the request takes this structure, which lives through the call.
        unsafe { ioctl(&self.0, Updater::<{ UFFDIO_UNREGISTER as Opcode }, _>::new(&mut range))? };
        Ok(())
    }

    /// The address of the next fault, if there is one.
    pub(super) fn next_fault(&self) -> io::Result<Option<usize>> {
        let mut message = [0; size_of::<uffd_msg>()];
        match rustix::io::read(self.0.as_fd(), &mut message) {
            Ok(count) if count == message.len() => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // SAFETY: C3: the kernel wrote a whole message, each part of which is valid for every bit pattern.
        let message = unsafe { message.as_ptr().cast::<uffd_msg>().read_unaligned() };
        if u32::from(message.event) != UFFD_EVENT_PAGEFAULT {
            return Ok(None);
        }
        // SAFETY: C3: the event says which member of the union the kernel filled in.
        Ok(Some(unsafe { message.arg.pagefault.address } as usize))
    }

    /// Maps these bytes of the file and wakes the threads that wait for them.
    pub(super) fn resume(&self, start: usize, bytes: usize) -> io::Result<()> {
        let mut resume = uffdio_continue { range: range(start, bytes), mode: 0, mapped: 0 };
        // SAFETY: C3: the request takes this structure, which lives through the call.
        match unsafe { ioctl(&self.0, Updater::<{ UFFDIO_CONTINUE as Opcode }, _>::new(&mut resume)) } {
            // The page was mapped before.
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn range(start: usize, bytes: usize) -> uffdio_range {
    uffdio_range { start: start as u64, len: bytes as u64 }
}
