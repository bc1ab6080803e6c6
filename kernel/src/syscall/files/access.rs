//! Whether a file could be used (`access(2)`), and where links lead (`readlink(2)`).

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{check_flags, current};
use crate::errno::Errno;
use crate::files::mounts;
use crate::files::node::Kind;
use crate::syscall::{Answer, Call};
use crate::task::credentials::WRITE;

/// `R_OK`, `W_OK` and `X_OK` together.
const MODES: u64 = 7;

impl Call<'_> {
    pub(in crate::syscall) fn access(&self) -> Answer {
        self.access_at(current(), 0, self.arguments[1], 0)
    }

    pub(in crate::syscall) fn faccessat(&self) -> Answer {
        self.access_at(self.arguments[0], 1, self.arguments[2], 0)
    }

    pub(in crate::syscall) fn faccessat2(&self) -> Answer {
        let [directory, _, mode, flags, ..] = self.arguments;
        check_flags(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH | abi::AT_EACCESS)?;
        self.access_at(directory, 1, mode, flags)
    }

    /// Asks for the real user, unless `flags` say otherwise.
    fn access_at(&self, directory: u64, path: usize, mode: u64, flags: u64) -> Answer {
        if mode & !MODES != 0 {
            return Err(Errno::EINVAL);
        }
        let place = self.place(directory, &self.path(path)?, flags)?;
        let file = place.node().attributes();
        let is_stored = matches!(file.kind, Kind::Regular | Kind::Directory | Kind::Symlink);
        if mode as u32 & WRITE != 0 && is_stored && mounts::has_flag(&place, abi::MS_RDONLY) {
            return Err(Errno::EROFS);
        }
        let own = self.process().credentials();
        let own = if flags as u32 & abi::AT_EACCESS != 0 { own } else { own.real() };
        if own.may(mode as u32, &file) { Ok(0) } else { Err(Errno::EACCES) }
    }

    pub(in crate::syscall) fn readlink(&self) -> Answer {
        self.readlink_at(current(), 0)
    }

    pub(in crate::syscall) fn readlinkat(&self) -> Answer {
        self.readlink_at(self.arguments[0], 1)
    }

    fn readlink_at(&self, directory: u64, path: usize) -> Answer {
        let (buffer, bytes) = (self.arguments[path + 1], self.arguments[path + 2]);
        if bytes as i32 <= 0 {
            return Err(Errno::EINVAL);
        }
        let flags = abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
        let path = self.path(path)?;
        let text = self.place(directory, &path, flags.into())?.node().link_text();
        let text = text.map_err(|errno| if path.is_empty() { Errno::ENOENT } else { errno })?;
        let count = text.len().min(bytes as usize);
        self.memory.write(VirtAddr(buffer), &text[..count])?;
        Ok(count as u64)
    }
}
