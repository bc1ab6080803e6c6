//! An open regular file of the tmpfs.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::body::Body;
use super::inode::Inode;
use crate::errno::Errno;
use crate::files::io::{Sink, Source};
use crate::files::limits;
use crate::files::open::{File, Io, Mapping};

/// An open regular file.
pub struct RegularFile {
    inode: Arc<Inode>,
}

impl RegularFile {
    pub(super) fn new(inode: Arc<Inode>) -> Self {
        Self { inode }
    }

    fn body(&self) -> &Body {
        self.inode.body().expect("only regular files are opened so")
    }
}

impl File for RegularFile {
    fn read(&self, position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        let count = self.body().read(position, to)?;
        self.inode.note_read();
        Ok(count)
    }

    fn write(&self, position: &mut u64, from: &mut dyn Source, io: Io) -> Result<usize, Errno> {
        let count = self.body().write(position, from, io.append, limits::file_size())?;
        if count > 0 {
            self.inode.note_write();
        }
        Ok(count)
    }

    fn next(&self, at: u64, hole: bool) -> Option<Option<u64>> {
        let file = self.body().file().ok()?;
        Some(if hole { file.next_hole(at) } else { file.next_data(at) })
    }

    fn mapping(&self) -> Result<Mapping<'_>, Errno> {
        Ok(Mapping::File(self.body().file()?))
    }

    fn may_map_to_store(&self) -> bool {
        self.body().seals() & (abi::F_SEAL_WRITE | abi::F_SEAL_FUTURE_WRITE) == 0
    }

    fn control(&self, command: u32, argument: u64) -> Result<u64, Errno> {
        match command {
            abi::F_GET_SEALS => Ok(self.body().seals().into()),
            abi::F_ADD_SEALS => {
                let file = self.body().file()?;
                self.body().add_seals(argument as u32, || file.may_be_stored_to())?;
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn allocate(&self, mode: u32, offset: u64, bytes: u64) -> Result<(), Errno> {
        let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        const PUNCH: u32 = abi::FALLOC_FL_PUNCH_HOLE | abi::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 | abi::FALLOC_FL_KEEP_SIZE => {
                if mode == 0 {
                    limits::check_file_size(end)?;
                }
                self.body().allocate(offset, end, mode != 0)?;
            }
            PUNCH => self.body().punch(offset, end)?,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.inode.note_write();
        Ok(())
    }
}
