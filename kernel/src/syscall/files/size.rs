//! The size of files, and the pages behind it (`truncate(2)`, `fallocate(2)`).

use alloc::sync::Arc;

use super::current;
use crate::errno::Errno;
use crate::files::claim::Claim;
use crate::files::dentry::Dentry;
use crate::files::limits;
use crate::files::node::Kind;
use crate::syscall::{Answer, Call};
use crate::task::credentials::{WRITE, check_file};

impl Call<'_> {
    pub(in crate::syscall) fn truncate(&self) -> Answer {
        let bytes = size(self.arguments[1])?;
        let place = self.place(current(), &self.path(0)?, 0)?;
        match place.node().kind() {
            Kind::Directory => return Err(Errno::EISDIR),
            Kind::Regular => {
                check_file(WRITE, || place.node().attributes())?;
                let _claim = Claim::to_write(place.node())?;
                set_size(&place, bytes)?;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    pub(in crate::syscall) fn ftruncate(&self) -> Answer {
        let bytes = size(self.arguments[1])?;
        let file = self.file(0)?;
        if !file.can_write() || !file.is_regular() {
            return Err(Errno::EINVAL);
        }
        set_size(file.place(), bytes)?;
        Ok(0)
    }

    pub(in crate::syscall) fn fallocate(&self) -> Answer {
        let [_, mode, offset, bytes, ..] = self.arguments;
        let file = self.file(0)?;
        if offset > i64::MAX as u64 || bytes > i64::MAX as u64 || bytes == 0 {
            return Err(Errno::EINVAL);
        }
        file.check_write()?;
        if !file.file().is_seekable() {
            return Err(Errno::ESPIPE);
        }
        file.file().allocate(mode as u32, offset, bytes)?;
        file.place().node().drop_set_ids()?;
        Ok(0)
    }
}

/// Sets a file's size. It grows only to the process's limit.
fn set_size(place: &Arc<Dentry>, bytes: u64) -> Result<(), Errno> {
    if bytes > place.node().attributes().size {
        limits::check_file_size(bytes)?;
    }
    place.node().truncate(bytes)?;
    place.node().drop_set_ids()
}

fn size(argument: u64) -> Result<u64, Errno> {
    if argument > i64::MAX as u64 { Err(Errno::EINVAL) } else { Ok(argument) }
}
