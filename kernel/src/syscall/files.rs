//! The calls about files, which can only be read.

use alloc::sync::Arc;

use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::files::open::OpenFiles;
use crate::task::sleep_lock::SleepLock;

/// The longest path, with the zero byte at its end (`PATH_MAX`).
pub(super) const PATH_BYTES: usize = 4096;
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
        let path = self.memory.read_string(path, PATH_BYTES, Errno::ENAMETOOLONG)?;
        self.files().lock().open(str::from_utf8(&path).map_err(|_| Errno::ENOENT)?)
    }

    pub(super) fn read(&mut self) -> Answer {
        let [descriptor, buffer, most, ..] = self.arguments;
        if descriptor == 0 {
            // Nothing is typed: standard input is at its end.
            return Ok(0);
        }
        let memory = self.memory;
        self.files().lock().read(descriptor, most, |bytes| memory.write(VirtAddr(buffer), bytes))
    }

    /// `close`. The standard descriptors are always open.
    pub(super) fn close(&mut self) -> Answer {
        match self.arguments[0] {
            0..=2 => Ok(0),
            descriptor => self.files().lock().close(descriptor).map(|()| 0),
        }
    }

    /// The process's open files.
    fn files(&self) -> Arc<SleepLock<OpenFiles>> {
        self.process().files.lock().clone()
    }

    /// `readlink`: there are no links. Static programs ask for `/proc/self/exe` and do without.
    pub(super) fn readlink(&self) -> Answer {
        Err(Errno::ENOENT)
    }
}
