//! Copies from file to file (`sendfile(2)`, `copy_file_range(2)`).

use alloc::sync::Arc;

use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::io::{Chunk, KernelSink, KernelSource, MOST_BYTES};
use crate::files::open::OpenFile;
use crate::syscall::{Answer, Call};
use crate::task::sched;

/// Where a copy reads. The file's own position changes at the end, if at all: tasks may move it meanwhile.
struct Input {
    file: Arc<OpenFile>,
    offset: u64,
}

impl Input {
    /// A file at an offset that the caller keeps, or else at its own position.
    fn new(file: Arc<OpenFile>, offset: Option<u64>) -> Self {
        let offset = offset.unwrap_or_else(|| *file.position().lock());
        Self { file, offset }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let count = self.file.read_at(self.offset, &mut KernelSink::new(bytes), self.file.io())?;
        self.offset += count as u64;
        Ok(count)
    }

    /// Takes back bytes that were read and could not be written.
    fn unread(&mut self, count: usize) {
        self.offset -= count as u64;
    }
}

/// Where a copy writes: a file at its own position, or at an offset that the caller keeps.
struct Output {
    file: Arc<OpenFile>,
    offset: Option<u64>,
}

impl Output {
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
}

impl Call<'_> {
    pub(in crate::syscall) fn sendfile(&self) -> Answer {
        let [_, _, offset, bytes, ..] = self.arguments;
        let mut to = Output { file: self.file(0)?, offset: None };
        let (file, start) = (self.file(1)?, self.offset_at(offset)?);
        if !file.file().is_seekable() {
            return Err(Errno::EINVAL);
        }
        let mut from = Input::new(file, start);
        let count = copy(&mut from, &mut to, bytes);
        self.put_input(offset, &from, count)
    }

    pub(in crate::syscall) fn copy_file_range(&self) -> Answer {
        let [_, from_at, _, to_at, bytes, flags] = self.arguments;
        let mut from = Input::new(self.file(0)?, self.offset_at(from_at)?);
        let mut to = Output { file: self.file(2)?, offset: self.offset_at(to_at)? };
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        for file in [&from.file, &to.file] {
            match file.is_regular() {
                false if file.is_directory() => return Err(Errno::EISDIR),
                false => return Err(Errno::EINVAL),
                true => {}
            }
        }
        if to.file.io().append {
            return Err(Errno::EBADF);
        }
        // No more than there is now: what is written may lie behind that, and is not copied again.
        let bytes = bytes.min(from.file.attributes().size.saturating_sub(from.offset));
        check_overlap(&from, &to, bytes)?;
        let count = copy(&mut from, &mut to, bytes);
        if let Some(offset) = to.offset {
            self.memory.write(VirtAddr(to_at), &offset.to_le_bytes())?;
        }
        self.put_input(from_at, &from, count)
    }

    /// The offset that an argument points to, if it is not 0.
    fn offset_at(&self, at: u64) -> Result<Option<u64>, Errno> {
        if at == 0 {
            return Ok(None);
        }
        super::read_write::offset(self.memory.read_u64(VirtAddr(at))?).map(Some)
    }

    /// Says how far a copy has read: to the caller, or by the file's position, which stays if nothing was copied.
    fn put_input(&self, at: u64, from: &Input, count: Answer) -> Answer {
        if at != 0 {
            self.memory.write(VirtAddr(at), &from.offset.to_le_bytes())?;
        } else if count.is_ok_and(|count| count > 0) {
            *from.file.position().lock() = from.offset;
        }
        count
    }
}

/// A file cannot be copied over itself.
fn check_overlap(from: &Input, to: &Output, bytes: u64) -> Result<(), Errno> {
    let (source, target) = (from.file.attributes(), to.file.attributes());
    if (source.fs, source.number) != (target.fs, target.number) {
        return Ok(());
    }
    let to = to.offset.unwrap_or_else(|| *to.file.position().lock());
    let overlaps = from.offset < to.saturating_add(bytes) && to < from.offset.saturating_add(bytes);
    if overlaps { Err(Errno::EINVAL) } else { Ok(()) }
}

fn copy(from: &mut Input, to: &mut Output, bytes: u64) -> Answer {
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
            Ok(_) if count < read || sched::call_shall_end() => break,
            Ok(_) => {}
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done as u64)
}
