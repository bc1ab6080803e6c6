//! Locks of ranges of bytes (`fcntl(2)`, "Advisory record locking").

use core::ptr;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::control::is_of_open_file;
use crate::errno::Errno;
use crate::files::locks::{self, Lock, LockSet, Owner};
use crate::files::open::OpenFile;
use crate::syscall::{Answer, Call};

/// `struct flock`: type, whence, padding, start, length, process.
const FLOCK_BYTES: usize = 32;
/// In `l_pid`: the lock belongs to an open file.
const OF_FILE: u32 = u32::MAX;

/// A request: a lock, and whether it is to be taken or given up.
struct Request {
    lock: Lock,
    kind: u32,
}

impl Call<'_> {
    /// `F_GETLK`: which lock would be in the way.
    pub(super) fn get_lock(&self, file: &OpenFile, command: u32) -> Answer {
        let Request { lock, kind } = self.lock_request(file, command)?;
        if kind == abi::F_UNLCK {
            return Err(Errno::EINVAL);
        }
        let at = self.arguments[2];
        match locks::conflict(file, &lock) {
            None => self.memory.write(VirtAddr(at), &(abi::F_UNLCK as u16).to_le_bytes())?,
            Some(other) => self.memory.write(VirtAddr(at), &flock_image(&other))?,
        }
        Ok(0)
    }

    /// `F_SETLK`, `F_SETLKW`
    pub(super) fn set_lock(&self, file: &OpenFile, command: u32) -> Answer {
        let Request { lock, kind } = self.lock_request(file, command)?;
        match kind {
            abi::F_RDLCK if !file.can_read() => return Err(Errno::EBADF),
            abi::F_WRLCK if !file.can_write() => return Err(Errno::EBADF),
            abi::F_UNLCK => locks::release(file, lock)?,
            _ => {
                let waits = matches!(command, abi::F_SETLKW | abi::F_OFD_SETLKW);
                locks::acquire(file, lock, waits)?;
                self.keep_lock(file, lock)?;
            }
        }
        Ok(0)
    }

    /// A process has locks of files that it has open. The descriptor may have been closed while the call waited.
    fn keep_lock(&self, file: &OpenFile, lock: Lock) -> Result<(), Errno> {
        let is_open = || self.table().get(self.arguments[0]).is_ok_and(|now| ptr::eq(&*now, file));
        if lock.process == OF_FILE || is_open() {
            return Ok(());
        }
        locks::release(file, lock)?;
        Err(Errno::EBADF)
    }

    fn lock_request(&self, file: &OpenFile, command: u32) -> Result<Request, Errno> {
        let mut image = [0; FLOCK_BYTES];
        self.memory.read(VirtAddr(self.arguments[2]), &mut image)?;
        let half = |at: usize| u32::from(u16::from_le_bytes([image[at], image[at + 1]]));
        let word = |at: usize| i64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
        let kind = half(0);
        if !matches!(kind, abi::F_RDLCK | abi::F_WRLCK | abi::F_UNLCK) {
            return Err(Errno::EINVAL);
        }
        let base = match half(2) {
            abi::SEEK_SET => 0,
            abi::SEEK_CUR => *file.position().lock() as i64,
            abi::SEEK_END => file.attributes().size as i64,
            _ => return Err(Errno::EINVAL),
        };
        let (start, last) = range(base, word(8), word(16))?;
        let owner = is_of_open_file(file, command);
        let process = if owner.is_some() { OF_FILE } else { self.process().id };
        let owner = owner.unwrap_or_else(|| Owner::of_table(&self.table()));
        let exclusive = kind == abi::F_WRLCK;
        Ok(Request { lock: Lock { set: LockSet::Ranges, owner, process, exclusive, start, last }, kind })
    }
}

/// The first and the last byte of a range. A length of 0 reaches to the end, a negative one lies before the start.
fn range(base: i64, start: i64, length: i64) -> Result<(u64, u64), Errno> {
    let start = base.checked_add(start).ok_or(Errno::EOVERFLOW)?;
    let (start, last) = match length {
        0 => (start, i64::MAX),
        1.. => (start, start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?),
        _ => (start.checked_add(length).ok_or(Errno::EINVAL)?, start - 1),
    };
    if start < 0 { Err(Errno::EINVAL) } else { Ok((start as u64, last as u64)) }
}

fn flock_image(lock: &Lock) -> [u8; FLOCK_BYTES] {
    let mut image = [0; FLOCK_BYTES];
    let kind = if lock.exclusive { abi::F_WRLCK } else { abi::F_RDLCK };
    let length = if lock.last >= i64::MAX as u64 { 0 } else { lock.last - lock.start + 1 };
    image[..2].copy_from_slice(&(kind as u16).to_le_bytes());
    image[8..16].copy_from_slice(&lock.start.to_le_bytes());
    image[16..24].copy_from_slice(&length.to_le_bytes());
    image[24..28].copy_from_slice(&lock.process.to_le_bytes());
    image
}
