//! Copies from file to file (`sendfile(2)`, `copy_file_range(2)`).

use alloc::sync::Arc;

use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::io::{Chunk, KernelSink, KernelSource, MOST_BYTES};
use crate::files::open::OpenFile;
use crate::syscall::{Answer, Call};

/// One side of a copy: a file at its own position, or at one that the caller keeps.
struct Side {
    file: Arc<OpenFile>,
    offset: Option<u64>,
}

impl Side {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let mut sink = KernelSink::new(bytes);
        match &mut self.offset {
            None => self.file.read(&mut sink),
            Some(offset) => {
                let count = self.file.read_at(*offset, &mut sink, self.file.io())?;
                *offset += count as u64;
                Ok(count)
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut source = KernelSource(bytes);
        match &mut self.offset {
            None => self.file.write(&mut source),
            Some(offset) => {
                let count = self.file.write_at(*offset, &mut source, self.file.io())?;
                *offset += count as u64;
                Ok(count)
            }
        }
    }

    /// Takes back bytes that were read and could not be written.
    fn unread(&mut self, count: usize) {
        match &mut self.offset {
            Some(offset) => *offset -= count as u64,
            None if self.file.file().is_seekable() => *self.file.position().lock() -= count as u64,
            None => {}
        }
    }
}

impl Call<'_> {
    pub(in crate::syscall) fn sendfile(&self) -> Answer {
        let [_, _, offset, bytes, ..] = self.arguments;
        let to = Side { file: self.file(0)?, offset: None };
        let mut from = Side { file: self.file(1)?, offset: self.offset_at(offset)? };
        if !from.file.file().is_seekable() {
            return Err(Errno::EINVAL);
        }
        let count = copy(&mut from, &mut { to }, bytes);
        self.put_offset(offset, &from)?;
        count
    }

    pub(in crate::syscall) fn copy_file_range(&self) -> Answer {
        let [_, from_at, _, to_at, bytes, flags] = self.arguments;
        let mut from = Side { file: self.file(0)?, offset: self.offset_at(from_at)? };
        let mut to = Side { file: self.file(2)?, offset: self.offset_at(to_at)? };
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        for side in [&from, &to] {
            match side.file.is_regular() {
                false if side.file.is_directory() => return Err(Errno::EISDIR),
                false => return Err(Errno::EINVAL),
                true => {}
            }
        }
        if to.file.io().append {
            return Err(Errno::EBADF);
        }
        self.check_overlap(&from, &to, bytes)?;
        let count = copy(&mut from, &mut to, bytes);
        self.put_offset(from_at, &from)?;
        self.put_offset(to_at, &to)?;
        count
    }

    /// A file cannot be copied over itself.
    fn check_overlap(&self, from: &Side, to: &Side, bytes: u64) -> Result<(), Errno> {
        let key = |side: &Side| {
            let file = side.file.attributes();
            (file.fs, file.number)
        };
        let start = |side: &Side| side.offset.unwrap_or_else(|| *side.file.position().lock());
        if key(from) != key(to) {
            return Ok(());
        }
        let (from, to) = (start(from), start(to));
        if from < to.saturating_add(bytes) && to < from.saturating_add(bytes) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// The offset that an argument points to, if it is not 0.
    fn offset_at(&self, at: u64) -> Result<Option<u64>, Errno> {
        if at == 0 {
            return Ok(None);
        }
        super::read_write::offset(self.memory.read_u64(VirtAddr(at))?).map(Some)
    }

    fn put_offset(&self, at: u64, side: &Side) -> Result<(), Errno> {
        match side.offset {
            Some(offset) if at != 0 => self.memory.write(VirtAddr(at), &offset.to_le_bytes()),
            _ => Ok(()),
        }
    }
}

fn copy(from: &mut Side, to: &mut Side, bytes: u64) -> Answer {
    let wanted = bytes.min(MOST_BYTES) as usize;
    let mut chunk = Chunk::for_bytes(wanted)?;
    let mut done = 0;
    while done < wanted {
        let part = chunk.len().min(wanted - done);
        let read = match from.read(&mut chunk[..part]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        };
        let written = to.write(&chunk[..read]);
        let count = *written.as_ref().unwrap_or(&0);
        from.unread(read - count);
        done += count;
        match written {
            Ok(_) if count == read => {}
            Ok(_) => break,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done as u64)
}
