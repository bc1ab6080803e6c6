//! Counters to wait for (`eventfd(2)`).

use alloc::boxed::Box;

use linux_raw_sys::general as abi;

use super::check_flags;
use crate::errno::Errno;
use crate::files::anonymous;
use crate::files::event_counter::EventCounter;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    pub(in crate::syscall) fn eventfd(&self) -> Answer {
        self.make_counter(0)
    }

    pub(in crate::syscall) fn eventfd2(&self) -> Answer {
        self.make_counter(self.arguments[1])
    }

    fn make_counter(&self, flags: u64) -> Answer {
        check_flags(flags, abi::EFD_CLOEXEC | abi::EFD_NONBLOCK | abi::EFD_SEMAPHORE)
            .map_err(|_| Errno::EINVAL)?;
        let flags = flags as u32;
        let counter = EventCounter::new(self.arguments[0] as u32, flags & abi::EFD_SEMAPHORE != 0);
        let open_flags = abi::O_RDWR | flags & abi::EFD_NONBLOCK;
        let file = anonymous::open(Box::new(counter), "anon_inode:[eventfd]", open_flags);
        self.table().add(file, flags & abi::EFD_CLOEXEC != 0)
    }
}
