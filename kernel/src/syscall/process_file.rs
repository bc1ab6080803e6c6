//! Calls that name a process by a descriptor: `pidfd_open`, `pidfd_getfd`, `pidfd_send_signal` and `process_madvise`.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::files::process_file::{self, ProcessFile};
use crate::task::process::Process;
use crate::task::table;

/// `PIDFD_NONBLOCK`
const NONBLOCK: u32 = abi::O_NONBLOCK;

impl Call<'_> {
    /// `pidfd_open`
    pub(super) fn pidfd_open(&self) -> Answer {
        let [pid, flags, ..] = self.arguments.map(|argument| argument as u32);
        if flags & !NONBLOCK != 0 || (pid as i32) <= 0 {
            return Err(Errno::EINVAL);
        }
        let process = table::process(pid);
        // A thread that is not the first one of its process has none.
        let missing = || if table::task(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH };
        let file = process_file::open(process.ok_or_else(missing)?, flags != 0);
        self.table().add(file, true)
    }

    /// `pidfd_getfd`: an open file of another process, by a descriptor of the caller's.
    pub(super) fn pidfd_getfd(&self) -> Answer {
        let [descriptor, wanted, flags, ..] = self.arguments;
        if flags as u32 != 0 {
            return Err(Errno::EINVAL);
        }
        let (process, _) = self.process_of(descriptor)?;
        if !table::is_known(&process) {
            return Err(Errno::ESRCH);
        }
        let files = process.files.lock().clone();
        let file = files.get(u64::from(wanted as u32));
        // After that: a process that executes a program meanwhile, with more rights, gives nothing away.
        if !self.process().may_trace(&process) {
            return Err(Errno::EPERM);
        }
        self.table().add(file?, true)
    }

    /// The process that a descriptor stands for, and whether a wait for it returns at once.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub(super) fn process_of(&self, descriptor: u64) -> Result<(Arc<Process>, bool), Errno> {
        let file = self.file_of(descriptor)?;
        let process = file.file_as::<ProcessFile>().ok_or(Errno::EBADF)?.0.clone();
        Ok((process, file.flags() & NONBLOCK != 0))
    }
}
