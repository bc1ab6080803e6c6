//! The requests of `ioctl`: their structures, and who serves them.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl;
use quire::addr::{VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;

use super::handler::{FEATURES, Handler};
use crate::errno::Errno;
use crate::memory::user::UserMemory;

/// `UFFDIO_POISON`, which linux-raw-sys does not name.
const UFFDIO_POISON: u32 = 0xc020_aa08;

/// The requests that a handler always takes, and the ranges registered with it may take.
const API_REQUESTS: u64 = 1 << abi::_UFFDIO_REGISTER | 1 << abi::_UFFDIO_UNREGISTER | 1 << abi::_UFFDIO_API;

/// A structure of a request in a program's memory, as words.
pub(super) struct Structure<'m> {
    pub(super) memory: UserMemory<'m>,
    at: u64,
}

impl Structure<'_> {
    /// Its first words.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub(super) fn words<const COUNT: usize>(&self) -> Result<[u64; COUNT], Errno> {
        let mut bytes = [[0; 8]; COUNT];
        self.memory.read(VirtAddr(self.at), bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    /// Stores one of its words.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub(super) fn set(&self, index: u64, word: u64) -> Result<(), Errno> {
        let at = self.at.checked_add(index * 8).ok_or(Errno::EFAULT)?;
        self.memory.write(VirtAddr(at), &word.to_le_bytes())
    }
}

impl Handler {
    /// Serves a request.
    ///
    /// # Errors
    /// As `ioctl_userfaultfd(2)`.
    pub fn serve(self: &Arc<Self>, memory: UserMemory<'_>, request: u32, at: u64) -> Result<u64, Errno> {
        let structure = Structure { memory, at };
        if request != ioctl::UFFDIO_API {
            self.ready()?;
        }
        match request {
            ioctl::UFFDIO_API => self.api(&structure)?,
            ioctl::UFFDIO_REGISTER => self.register(&structure)?,
            ioctl::UFFDIO_UNREGISTER => self.unregister(&structure)?,
            ioctl::UFFDIO_WAKE => self.wake(&structure)?,
            ioctl::UFFDIO_COPY => self.copy(&structure)?,
            ioctl::UFFDIO_ZEROPAGE => self.zeropage(&structure)?,
            ioctl::UFFDIO_WRITEPROTECT => self.write_protect(&structure)?,
            ioctl::UFFDIO_CONTINUE => self.resume(&structure)?,
            UFFDIO_POISON => self.poison(&structure)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    fn api(self: &Arc<Self>, structure: &Structure<'_>) -> Result<(), Errno> {
        let [api, features] = structure.words()?;
        let known = api == u64::from(abi::UFFD_API) && features & !u64::from(FEATURES) == 0;
        let begun = if known { self.begin(features as u32) } else { Err(Errno::EINVAL) };
        if begun.is_err() {
            (0..3).try_for_each(|index| structure.set(index, 0))?;
            return begun;
        }
        structure.set(1, u64::from(FEATURES))?;
        structure.set(2, API_REQUESTS)
    }
}

/// The pages of a range, which must be whole.
pub(super) fn page_range(start: u64, len: u64) -> Result<VirtRange, Errno> {
    let whole = start.is_multiple_of(FRAME_SIZE) && len.is_multiple_of(FRAME_SIZE) && len != 0;
    let end = start.checked_add(len).filter(|_| whole).ok_or(Errno::EINVAL)?;
    Ok(VirtRange::new(VirtAddr(start), VirtAddr(end)))
}
