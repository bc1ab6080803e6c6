//! `userfaultfd`

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::syscall::{Answer, Call};
use crate::userfault;

const KNOWN: u32 = abi::O_CLOEXEC | abi::O_NONBLOCK | abi::UFFD_USER_MODE_ONLY;

impl Call<'_> {
    /// `userfaultfd`. Root's handlers may handle the kernel's accesses too, whether or not they ask to
    /// (`UFFD_USER_MODE_ONLY`).
    pub(in crate::syscall) fn userfaultfd(&self) -> Answer {
        let flags = self.arguments[0] as u32;
        if flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let space = self.task.space_handle().ok_or(Errno::EINVAL)?;
        let file = userfault::open(&space, flags & abi::O_NONBLOCK != 0);
        let files = self.process().files.lock().clone();
        files.add(file, flags & abi::O_CLOEXEC != 0)
    }
}
