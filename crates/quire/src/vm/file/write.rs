//! Writes a file as `write(2)` does, through the page cache, so that mappings see it at once.
#![forbid(unsafe_code)]

use crate::error::{FaultError, MmError};
use crate::filemap::{FileKind, FileNode, FileResize};
use crate::limits::FRAME_SIZE;
use crate::platform::{Pager, Platform};
use crate::vm::file::handle::File;
use crate::vm::file::read::{Reader, error_of, part_at};
use crate::vm::file::truncate::Truncation;
use crate::vm::handle::handle;
use crate::vm::space::shared::MmShared;

/// The largest offset of a byte of a file, plus one.
const OFFSET_END: u64 = i64::MAX as u64 / FRAME_SIZE * FRAME_SIZE;

impl<P: Platform> File<'_, P> {
    /// Copies `bytes` to the file from `offset` on, and returns how many: fewer only when an error came after
    /// the first page. Lengthens the file where they end behind its end; bytes between the old end and
    /// `offset` read as zeroes, as after [`truncate`](Self::truncate). In shared memory a byte is part of the
    /// file only once it is written; a file of the pager is lengthened page by page before.
    ///
    /// One task at a time writes a file or changes its size. `bytes` is memory of the kernel, so that no fault
    /// on the same page can come meanwhile. The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MmError::NoMemory`]; [`MmError::Io`] when the pager fails or the contents of the first page are lost;
    /// [`MmError::Overflow`] behind the largest offset; [`MmError::Invalid`] for a file of huge pages, as in
    /// Linux. Nothing has changed then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, MmError> {
        let memory = self.memory().sleepable();
        if self.node().huge_order().is_some() {
            return Err(MmError::Invalid);
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= OFFSET_END);
        end.ok_or(MmError::Overflow)?;
        Writer::of(memory).write(&self.node().resize(memory.platform()), offset, bytes)
    }
}

handle! { Writer of MmShared }

impl<P: Platform> Writer<'_, '_, P> {
    fn write(self, file: &FileResize<'_>, offset: u64, bytes: &[u8]) -> Result<usize, MmError> {
        let mut done = 0;
        while done < bytes.len() {
            let (index, inside) = part_at(offset + done as u64, bytes.len() - done);
            let part = &bytes[done..done + inside.len()];
            match self.write_page(file, index, inside.start, part) {
                Ok(()) => done += part.len(),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error_of(error)),
            }
            self.platform().reschedule_point();
        }
        Ok(done)
    }

    /// Writes a part of one page, and lengthens the file to the part's end if it ends before.
    fn write_page(self, file: &FileResize<'_>, index: u64, at: usize, part: &[u8]) -> Result<(), FaultError> {
        let before = file.node().size(self.platform());
        let end = before.max(index * FRAME_SIZE + (at + part.len()) as u64);
        let FileKind::Paged(name) = file.node().kind() else {
            self.store(file.node(), index, at, part)?;
            file.set_bytes(end);
            return Ok(());
        };
        if end > before {
            self.platform().pager().resize(name, end).map_err(|_| FaultError::Io)?;
        }
        let stored = self.store(file.node(), index, at, part);
        if stored.is_err() && end > before {
            // A pager that cannot undo this leaves the file longer, with zeroes.
            let _ = Truncation::of(self.0).set_size(file, before);
        }
        stored
    }

    fn store(self, file: &FileNode, index: u64, at: usize, part: &[u8]) -> Result<(), FaultError> {
        Reader::of(self.0).with_user(file, |user| {
            let frame = self.files().page_behind_end(self.pages(), user, index)?.frame;
            if matches!(file.kind(), FileKind::Paged(_)) {
                self.files().mark_dirty(self.platform(), file, index);
            }
            self.files().write_frame(self.platform(), frame, at, part);
            Ok(())
        })
    }
}
