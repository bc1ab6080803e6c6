//! Directories: entries (`getdents64(2)`), working directory and root.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::current;
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::io::MOST_BYTES;
use crate::files::node::{Entry, Kind};
use crate::files::open::OpenFile;
use crate::files::walk::PATH_BYTES;
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right, check_search};

/// The bytes of `struct linux_dirent64` before the name.
const HEADER_BYTES: usize = 19;
/// The most that is copied at once.
const MOST: usize = 32 << 10;

impl Call<'_> {
    pub(in crate::syscall) fn getdents64(&self) -> Answer {
        let [_, buffer, bytes, ..] = self.arguments;
        let file = self.file(0)?;
        if !file.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let mut position = file.position().lock();
        let most = u64::from(bytes as u32).min(MOST_BYTES) as usize;
        let (image, next) = image(&file, *position, most.min(MOST))?;
        self.memory.write(VirtAddr(buffer), &image)?;
        *position = next;
        Ok(image.len() as u64)
    }

    pub(in crate::syscall) fn getcwd(&self) -> Answer {
        let [buffer, bytes, ..] = self.arguments;
        let places = self.places();
        if places.current.is_removed() {
            return Err(Errno::ENOENT);
        }
        let mut path = places.current.path_below(Some(&places.root))?;
        if path.len() >= PATH_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        path.push(0);
        if bytes < path.len() as u64 {
            return Err(Errno::ERANGE);
        }
        self.memory.write(VirtAddr(buffer), &path)?;
        Ok(path.len() as u64)
    }

    pub(in crate::syscall) fn chdir(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        self.fs_context().set_current(directory(place)?);
        Ok(0)
    }

    pub(in crate::syscall) fn fchdir(&self) -> Answer {
        let place = self.table().get(self.arguments[0])?.place().clone();
        self.fs_context().set_current(directory(place)?);
        Ok(0)
    }

    pub(in crate::syscall) fn chroot(&self) -> Answer {
        let place = directory(self.place(current(), &self.path(0)?, 0)?)?;
        credentials::check(Right::ChangeRoot)?;
        self.fs_context().set_root(place);
        Ok(0)
    }

    pub(in crate::syscall) fn umask(&self) -> Answer {
        Ok(self.fs_context().set_umask(self.arguments[0] as u32 & 0o777).into())
    }
}

/// A directory in which the caller may look up names.
fn directory(place: Arc<Dentry>) -> Result<Arc<Dentry>, Errno> {
    if !place.node().is_directory() {
        return Err(Errno::ENOTDIR);
    }
    check_search(|| place.node().attributes())?;
    Ok(place)
}

/// The entries from a position on that fit, and the position behind them. The first two are `.` and `..`.
fn image(file: &OpenFile, position: u64, most: usize) -> Result<(Vec<u8>, u64), Errno> {
    let entries = file.file().entries(position == 0)?;
    let mut image = Vec::new();
    image.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
    let mut at = position;
    loop {
        let fits = match at {
            0 => push(&mut image, most, (b".", file.attributes().number, Kind::Directory), at + 1),
            1 => push(&mut image, most, (b"..", parent_number(file.place()), Kind::Directory), at + 1),
            _ => {
                let index = usize::try_from(at - 2).unwrap_or(usize::MAX);
                let Some(Entry { name, number, kind }) = entries.get(index) else { break };
                push(&mut image, most, (name, *number, *kind), at + 1)
            }
        };
        if !fits {
            break;
        }
        at += 1;
    }
    let more = (at.max(2) - 2) < entries.len() as u64 || at < 2;
    if image.is_empty() && more { Err(Errno::EINVAL) } else { Ok((image, at)) }
}

fn parent_number(place: &Arc<Dentry>) -> u64 {
    place.parent().as_ref().unwrap_or(place).node().attributes().number
}

/// Appends an entry if it fits.
fn push(image: &mut Vec<u8>, most: usize, (name, number, kind): (&[u8], u64, Kind), next: u64) -> bool {
    let length = (HEADER_BYTES + name.len() + 1).next_multiple_of(8);
    if image.len() + length > most {
        return false;
    }
    let start = image.len();
    image.extend_from_slice(&number.to_le_bytes());
    image.extend_from_slice(&next.to_le_bytes());
    image.extend_from_slice(&(length as u16).to_le_bytes());
    image.push(type_of(kind));
    image.extend_from_slice(name);
    image.resize(start + length, 0);
    true
}

/// `d_type`
fn type_of(kind: Kind) -> u8 {
    (kind.mode_bits() >> 12 & (abi::S_IFMT >> 12)) as u8
}
