//! `unshare`: a process gets its own copy of what it shares with others. There are no namespaces.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::{Answer, Call};
use crate::errno::Errno;

const KNOWN: u32 = abi::CLONE_THREAD
    | abi::CLONE_FS
    | abi::CLONE_SIGHAND
    | abi::CLONE_VM
    | abi::CLONE_FILES
    | abi::CLONE_SYSVSEM;
/// What a process cannot get a copy of: it must have it alone already.
const ALONE: u32 = abi::CLONE_THREAD | abi::CLONE_SIGHAND | abi::CLONE_VM;
/// The references to the address space of a single task: the task's, the process's, and the one that is looked at.
const SPACE_REFERENCES: usize = 3;

impl Call<'_> {
    pub(super) fn unshare(&self) -> Answer {
        let flags = self.arguments[0];
        let has = |flag: u32| flags & u64::from(flag) != 0;
        let process = self.process();
        // Descriptors and places belong to a process with all its threads.
        let has_threads = has(KNOWN & !abi::CLONE_SYSVSEM) && process.threads.lock().len() > 1;
        if flags & !u64::from(KNOWN) != 0 || has_threads {
            return Err(Errno::EINVAL);
        }
        let shares_memory =
            || self.task.space_handle().is_some_and(|space| Arc::strong_count(&space) > SPACE_REFERENCES);
        if has(ALONE & !abi::CLONE_THREAD) && process.signals.shares_actions()
            || has(abi::CLONE_VM) && shares_memory()
        {
            return Err(Errno::EINVAL);
        }
        if has(abi::CLONE_FILES) {
            self.unshare_files()?;
        }
        if has(abi::CLONE_FS) {
            let fs = process.fs.lock().clone();
            let own = fs.map(|fs| fs.copy());
            let old = core::mem::replace(&mut *process.fs.lock(), own);
            drop(old);
        }
        Ok(0)
    }
}
