//! Duplicating descriptors.

use linux_raw_sys::general as abi;

use super::check_flags;
use crate::errno::Errno;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    pub(in crate::syscall) fn dup(&self) -> Answer {
        let table = self.table();
        table.add(table.get(self.arguments[0])?, false)
    }

    pub(in crate::syscall) fn dup2(&self) -> Answer {
        let [old, new, ..] = self.arguments;
        if old as u32 == new as u32 {
            self.table().get(old)?;
            return Ok(u64::from(new as u32));
        }
        self.duplicate(old, new, false)
    }

    pub(in crate::syscall) fn dup3(&self) -> Answer {
        let [old, new, flags, ..] = self.arguments;
        check_flags(flags, abi::O_CLOEXEC)?;
        if old as u32 == new as u32 {
            return Err(Errno::EINVAL);
        }
        self.duplicate(old, new, flags as u32 & abi::O_CLOEXEC != 0)
    }

    fn duplicate(&self, old: u64, new: u64, close_on_exec: bool) -> Answer {
        let table = self.table();
        let file = table.get(old)?;
        Ok(u64::from(table.set(new, file, close_on_exec)? as u32))
    }
}
