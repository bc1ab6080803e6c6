//! The calls about files, which can only be read.

use alloc::vec::Vec;

use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;

/// The longest path, with the zero byte at its end (`PATH_MAX`).
const PATH_BYTES: u64 = 4096;
/// `O_ACCMODE`; zero is reading.
const ACCESS_MODE: u64 = 3;

impl Call<'_> {
    /// `open`
    pub(super) fn open(&mut self) -> Answer {
        self.open_at(self.addr(0), self.arguments[1])
    }

    /// `openat`, as far as paths are absolute.
    pub(super) fn openat(&mut self) -> Answer {
        self.open_at(self.addr(1), self.arguments[2])
    }

    fn open_at(&mut self, path: VirtAddr, flags: u64) -> Answer {
        if flags & ACCESS_MODE != 0 {
            return Err(Errno::EROFS);
        }
        let path = self.path(path)?;
        self.files.open(str::from_utf8(&path).map_err(|_| Errno::ENOENT)?)
    }

    pub(super) fn read(&mut self) -> Answer {
        let [descriptor, buffer, most, ..] = self.arguments;
        if descriptor == 0 {
            // Nothing is typed: standard input is at its end.
            return Ok(0);
        }
        let memory = self.memory;
        self.files.read(descriptor, most, |bytes| memory.write(VirtAddr(buffer), bytes))
    }

    /// `close`. The standard descriptors are always open.
    pub(super) fn close(&mut self) -> Answer {
        match self.arguments[0] {
            0..=2 => Ok(0),
            descriptor => self.files.close(descriptor).map(|()| 0),
        }
    }

    /// Reads a path up to its zero byte, which may be the last byte that is mapped.
    fn path(&self, start: VirtAddr) -> Result<Vec<u8>, Errno> {
        let mut path = Vec::new();
        for offset in 0..PATH_BYTES {
            let mut byte = [0];
            let at = start.0.checked_add(offset).ok_or(Errno::EFAULT)?;
            self.memory.read(VirtAddr(at), &mut byte)?;
            match byte {
                [0] => return Ok(path),
                [byte] => path.push(byte),
            }
        }
        Err(Errno::ENAMETOOLONG)
    }
}
