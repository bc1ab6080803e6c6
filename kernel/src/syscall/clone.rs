//! New processes and threads.

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::clone::{CloneRequest, clone};

/// The signal in the flags of `clone(2)`.
const SIGNAL_MASK: u64 = 0xff;
/// The words of `struct clone_args` up to `tls`.
const ARGUMENT_WORDS: usize = 8;
/// The word of the control group, behind two for the child's number, which cannot be chosen.
const GROUP_WORD: u64 = 10;

impl Call<'_> {
    pub(super) fn clone(&self) -> Answer {
        let [flags, stack_end, parent_tid, child_tid, tls, _] = self.arguments;
        // The descriptor's place is the number's.
        let both = u64::from(abi::CLONE_PIDFD | abi::CLONE_PARENT_SETTID);
        if flags & both == both {
            return Err(Errno::EINVAL);
        }
        clone(
            self.task,
            &CloneRequest {
                // This call has the lower half alone.
                flags: u64::from(flags as u32) & !SIGNAL_MASK,
                stack_end,
                exit_signal: (flags & SIGNAL_MASK) as u32,
                parent_tid,
                descriptor: parent_tid,
                child_tid,
                tls,
                group: 0,
            },
        )
    }

    /// `clone3`. Programs give the size of its structure, which has grown.
    pub(super) fn clone3(&self) -> Answer {
        let [at, size, ..] = self.arguments;
        if size < ARGUMENT_WORDS as u64 * 8 {
            return Err(Errno::EINVAL);
        }
        self.check_tail(at, size)?;
        let has_group = size >= (GROUP_WORD + 1) * 8;
        let group_at = at.checked_add(GROUP_WORD * 8).filter(|_| has_group);
        let [group] = group_at.map_or(Ok([0]), |at| self.load_words(at))?;
        let [flags, descriptor, child_tid, parent_tid, exit_signal, stack, stack_size, tls] =
            self.load_words(at)?;
        let stack_end = stack.checked_add(stack_size).ok_or(Errno::EINVAL)?;
        if exit_signal > 64 || (stack == 0) != (stack_size == 0) {
            return Err(Errno::EINVAL);
        }
        if flags & abi::CLONE_INTO_CGROUP != 0 && (!has_group || group > i32::MAX as u64) {
            return Err(Errno::EINVAL);
        }
        // Such a task ends with the signal of another one.
        if flags & u64::from(abi::CLONE_THREAD | abi::CLONE_PARENT) != 0 && exit_signal != 0 {
            return Err(Errno::EINVAL);
        }
        let exit_signal = exit_signal as u32;
        clone(
            self.task,
            &CloneRequest { flags, stack_end, exit_signal, parent_tid, descriptor, child_tid, tls, group },
        )
    }

    /// What the kernel does not know of the structure must be zero.
    fn check_tail(&self, at: u64, size: u64) -> Result<(), Errno> {
        if size > 4096 {
            return Err(Errno::E2BIG);
        }
        let known = ARGUMENT_WORDS as u64 * 8;
        let group = GROUP_WORD * 8..GROUP_WORD * 8 + 8;
        for offset in (known..size).filter(|offset| !group.contains(offset)) {
            let mut byte = [0];
            self.memory.read(VirtAddr(at.checked_add(offset).ok_or(Errno::EFAULT)?), &mut byte)?;
            if byte != [0] {
                return Err(Errno::E2BIG);
            }
        }
        Ok(())
    }

    pub(super) fn fork(&self) -> Answer {
        clone(self.task, &CloneRequest { exit_signal: abi::SIGCHLD, ..CloneRequest::default() })
    }

    pub(super) fn vfork(&self) -> Answer {
        let flags = u64::from(abi::CLONE_VM | abi::CLONE_VFORK);
        clone(self.task, &CloneRequest { flags, exit_signal: abi::SIGCHLD, ..CloneRequest::default() })
    }
}
