//! `userfaultfd`

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::syscall::{Answer, Call};
use crate::task::credentials::Right;
use crate::userfault;

impl Call<'_> {
    /// `userfaultfd`. Only those with a right to it may handle the kernel's accesses.
    pub(in crate::syscall) fn userfaultfd(&self) -> Answer {
        let flags = self.arguments[0] as u32;
        if flags & abi::UFFD_USER_MODE_ONLY == 0 && !self.process().has(Right::Trace) {
            return Err(Errno::EPERM);
        }
        userfault::new_handler(flags)
    }
}
