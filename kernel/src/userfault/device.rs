//! `/dev/userfaultfd`: handlers for those who may open it.

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::files::open::{File, Ioctl};
use crate::task::sched;

/// `USERFAULTFD_IOC_NEW`
const NEW: u32 = 0xaa00;
const FLAGS: u32 = abi::O_CLOEXEC | abi::O_NONBLOCK | abi::UFFD_USER_MODE_ONLY;

/// The device.
pub struct UserfaultDevice;

impl File for UserfaultDevice {
    fn ioctl(&self, call: &Ioctl<'_>) -> Result<u64, Errno> {
        if call.request == NEW { new_handler(call.argument as u32) } else { Err(Errno::ENOTTY) }
    }
}

/// A descriptor of a new handler of the running process's faults. Handlers may handle the kernel's accesses too,
/// whether or not they ask to (`UFFD_USER_MODE_ONLY`).
///
/// # Errors
/// [`Errno::EINVAL`] for unknown flags; [`Errno::EMFILE`].
pub fn new_handler(flags: u32) -> Result<u64, Errno> {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let task = sched::current_ref();
    let space = task.space_handle().ok_or(Errno::EINVAL)?;
    let file = super::open(&space, flags & abi::O_NONBLOCK != 0);
    let files = task.process.files.lock().clone();
    files.add(file, flags & abi::O_CLOEXEC != 0)
}
