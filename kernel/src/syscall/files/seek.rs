//! The position of an open file (`lseek(2)`).

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::files::node::Kind;
use crate::files::open::OpenFile;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    pub(in crate::syscall) fn lseek(&self) -> Answer {
        let [_, offset, whence, ..] = self.arguments;
        let file = self.file(0)?;
        if !file.file().is_seekable() {
            return Err(Errno::ESPIPE);
        }
        let mut position = file.position().lock();
        let new = target(&file, *position, offset as i64, whence as u32)?;
        if file.is_directory() && new == 0 {
            file.file().entries(true)?;
        }
        *position = new;
        Ok(new)
    }
}

fn target(file: &OpenFile, position: u64, offset: i64, whence: u32) -> Result<u64, Errno> {
    let size = || file.file().end().unwrap_or_else(|| file.attributes().size);
    let from = |start: u64| {
        let sum = i128::from(start) + i128::from(offset);
        u64::try_from(sum).ok().filter(|sum| *sum <= i64::MAX as u64).ok_or(Errno::EINVAL)
    };
    match whence {
        abi::SEEK_SET => from(0),
        abi::SEEK_CUR => from(position),
        abi::SEEK_END => from(size()),
        abi::SEEK_DATA | abi::SEEK_HOLE => {
            if file.attributes().kind != Kind::Regular {
                return Err(Errno::EINVAL);
            }
            let at = u64::try_from(offset).ok().filter(|at| *at < size()).ok_or(Errno::ENXIO)?;
            match file.file().next(at, whence == abi::SEEK_HOLE) {
                Some(found) => found.ok_or(Errno::ENXIO),
                None => Ok(if whence == abi::SEEK_HOLE { size() } else { at }),
            }
        }
        _ => Err(Errno::EINVAL),
    }
}
