//! Reading and writing several buffers (`readv(2)`).

use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::read_write::offset;
use crate::errno::Errno;
use crate::files::io::UserParts;
use crate::files::open::{Io, OpenFile};
use crate::syscall::{Answer, Call};

/// The most buffers of one call (`IOV_MAX`).
const MOST_BUFFERS: u64 = 1024;
/// The offset that stands for the file's position, in `preadv2` and `pwritev2`.
const POSITION: u64 = u64::MAX;

impl Call<'_> {
    /// The buffers that an array of `struct iovec` names.
    pub(in crate::syscall) fn buffers(&self, array: u64, count: u64) -> Result<UserParts<'_>, Errno> {
        UserParts::many(self.memory, &self.vector(array, count)?)
    }

    /// An array of `struct iovec`: address and length of each.
    pub(in crate::syscall) fn vector(&self, array: u64, count: u64) -> Result<Vec<[u64; 2]>, Errno> {
        if count > MOST_BUFFERS {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(count as usize, [[0; 8]; 2]);
        self.memory.read(VirtAddr(array), bytes.as_flattened_mut().as_flattened_mut())?;
        Ok(bytes.iter().map(|words| words.map(u64::from_le_bytes)).collect())
    }

    fn argument_buffers(&self) -> Result<UserParts<'_>, Errno> {
        self.buffers(self.arguments[1], self.arguments[2])
    }

    pub(in crate::syscall) fn readv(&self) -> Answer {
        Ok(self.file(0)?.read(&mut self.argument_buffers()?)? as u64)
    }

    pub(in crate::syscall) fn writev(&self) -> Answer {
        Ok(self.file(0)?.write(&mut self.argument_buffers()?)? as u64)
    }

    pub(in crate::syscall) fn preadv(&self) -> Answer {
        let file = self.file(0)?;
        Ok(file.read_at(offset(self.arguments[3])?, &mut self.argument_buffers()?, file.io())? as u64)
    }

    pub(in crate::syscall) fn pwritev(&self) -> Answer {
        let file = self.file(0)?;
        Ok(file.write_at(offset(self.arguments[3])?, &mut self.argument_buffers()?, file.io())? as u64)
    }

    pub(in crate::syscall) fn preadv2(&self) -> Answer {
        let file = self.file(0)?;
        let io = io_of(&file, self.arguments[5])?;
        match self.arguments[3] {
            POSITION => Ok(file.read_as(&mut self.argument_buffers()?, io)? as u64),
            at => Ok(file.read_at(offset(at)?, &mut self.argument_buffers()?, io)? as u64),
        }
    }

    pub(in crate::syscall) fn pwritev2(&self) -> Answer {
        let file = self.file(0)?;
        let io = io_of(&file, self.arguments[5])?;
        match self.arguments[3] {
            POSITION => Ok(file.write_as(&mut self.argument_buffers()?, io)? as u64),
            at => Ok(file.write_at(offset(at)?, &mut self.argument_buffers()?, io)? as u64),
        }
    }
}

/// How a call with flags behaves.
fn io_of(file: &OpenFile, flags: u64) -> Result<Io, Errno> {
    let known = abi::RWF_HIPRI | abi::RWF_DSYNC | abi::RWF_SYNC | abi::RWF_NOWAIT | abi::RWF_APPEND;
    if flags & !u64::from(known) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut io = file.io();
    io.nonblocking |= flags as u32 & abi::RWF_NOWAIT != 0;
    io.append |= flags as u32 & abi::RWF_APPEND != 0;
    io.sync |= flags as u32 & (abi::RWF_DSYNC | abi::RWF_SYNC) != 0;
    Ok(io)
}
