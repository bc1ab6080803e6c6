//! Reading and writing one buffer.

use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::io::UserParts;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    fn buffer(&self) -> Result<UserParts<'_>, Errno> {
        let [_, start, bytes, ..] = self.arguments;
        UserParts::one(self.memory, VirtAddr(start), bytes)
    }

    pub(in crate::syscall) fn read(&self) -> Answer {
        Ok(self.file(0)?.read(&mut self.buffer()?)? as u64)
    }

    pub(in crate::syscall) fn write(&self) -> Answer {
        Ok(self.file(0)?.write(&mut self.buffer()?)? as u64)
    }

    pub(in crate::syscall) fn pread64(&self) -> Answer {
        let offset = offset(self.arguments[3])?;
        let file = self.file(0)?;
        Ok(file.read_at(offset, &mut self.buffer()?, file.io())? as u64)
    }

    pub(in crate::syscall) fn pwrite64(&self) -> Answer {
        let offset = offset(self.arguments[3])?;
        let file = self.file(0)?;
        Ok(file.write_at(offset, &mut self.buffer()?, file.io())? as u64)
    }
}

/// An offset, which is signed.
pub(super) fn offset(argument: u64) -> Result<u64, Errno> {
    if argument > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(argument) }
}
