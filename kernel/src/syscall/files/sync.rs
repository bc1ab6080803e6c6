//! Writing back (`fsync(2)`).

use linux_raw_sys::general as abi;

use super::check_flags;
use crate::errno::Errno;
use crate::files::stored;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    /// `fsync` and `fdatasync`.
    pub(in crate::syscall) fn fsync(&self) -> Answer {
        self.file(0)?.file().sync()?;
        Ok(0)
    }

    pub(in crate::syscall) fn sync_file_range(&self) -> Answer {
        let [_, offset, bytes, flags, ..] = self.arguments;
        let known =
            abi::SYNC_FILE_RANGE_WAIT_BEFORE | abi::SYNC_FILE_RANGE_WRITE | abi::SYNC_FILE_RANGE_WAIT_AFTER;
        check_flags(flags, known)?;
        let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
        end.ok_or(Errno::EINVAL)?;
        let file = self.file(0)?;
        if !file.file().is_seekable() {
            return Err(Errno::ESPIPE);
        }
        file.file().sync()?;
        Ok(0)
    }

    /// `sync`, which reports no errors.
    pub(in crate::syscall) fn sync(&self) -> Answer {
        let _ = stored::sync_all();
        Ok(0)
    }

    pub(in crate::syscall) fn syncfs(&self) -> Answer {
        self.file(0)?;
        stored::sync_all()?;
        Ok(0)
    }

    /// `fadvise64` and `readahead`: the advice changes nothing.
    pub(in crate::syscall) fn fadvise64(&self) -> Answer {
        let file = self.file(0)?;
        if !file.file().is_seekable() {
            return Err(Errno::ESPIPE);
        }
        if self.arguments[3] as u32 > abi::POSIX_FADV_NOREUSE { Err(Errno::EINVAL) } else { Ok(0) }
    }

    pub(in crate::syscall) fn readahead(&self) -> Answer {
        let file = self.file(0)?;
        if file.can_read() && file.is_regular() { Ok(0) } else { Err(Errno::EINVAL) }
    }
}
