//! Holes in files: punches, fills and finds them, as `fallocate` and `lseek` do.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::error::MmError;
use crate::filemap::{FileClosed, FileKind, FileNode, FileResize};
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::platform::Platform;
use crate::tlb::MmuGather;
use crate::vm::file::handle::File;
use crate::vm::file::read::{Reader, error_of};
use crate::vm::file::truncate::Truncation;
use crate::vm::handle::handle;
use crate::vm::hugetlb::file::HugeFiles;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::shared::MmShared;
use crate::vm::userfault::changes::FileNotices;

impl<P: Platform> File<'_, P> {
    /// Drops the pages that lie wholly in a range of bytes, and unmaps them everywhere (Linux: `fallocate` with
    /// `FALLOC_FL_PUNCH_HOLE`). Huge pages and reservations go back to the pool, and private copies of huge
    /// pages go too; those of other pages stay. Clears the parts of other pages that lie in the range. The
    /// size stays. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a file of the pager, and for an empty range; [`MmError::Overflow`].
    pub fn punch_hole(&self, bytes: Range<u64>) -> Result<(), MmError> {
        let memory = self.memory().sleepable();
        check_bytes(&bytes)?;
        match self.node().kind() {
            FileKind::Paged(_) => Err(MmError::Invalid),
            FileKind::Shmem { .. } => {
                Holes::of(memory).punch(self.node(), bytes);
                Ok(())
            }
            FileKind::Huge { .. } => HugeFiles::of(memory).punch_hole(self.node(), bytes),
        }
    }

    /// Allocates the missing pages of a range of bytes, and lengthens the file if it ends before (Linux:
    /// `fallocate`); huge pages come from the pool. The caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for a file of the pager, and for an empty range; [`MmError::Overflow`];
    /// [`MmError::NoMemory`] when there are no more pages: those before stay.
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), MmError> {
        let memory = self.memory().sleepable();
        check_bytes(&bytes)?;
        match self.node().kind() {
            FileKind::Paged(_) => Err(MmError::Invalid),
            FileKind::Shmem { .. } => Holes::of(memory).fill(&self.node().resize(memory.platform()), bytes),
            FileKind::Huge { .. } => HugeFiles::of(memory).allocate_huge(self.node(), bytes),
        }
    }

    /// The first byte from `offset` on that is not in a hole (Linux: `SEEK_DATA`), if there is one. A file of
    /// the pager has no holes.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        Holes::of(self.memory()).next_data(self.node(), offset).filter(|at| *at < self.size())
    }

    /// The first byte from `offset` on that is in a hole (Linux: `SEEK_HOLE`); the end of the file is one.
    /// `None` for an offset behind the end.
    pub fn next_hole(&self, offset: u64) -> Option<u64> {
        let size = self.size();
        (offset < size).then(|| Holes::of(self.memory()).next_hole(self.node(), offset, size))
    }
}

/// A range of bytes of a file is not empty and ends where files may end.
fn check_bytes(bytes: &Range<u64>) -> Result<(), MmError> {
    if bytes.is_empty() {
        return Err(MmError::Invalid);
    }
    if bytes.end > i64::MAX as u64 { Err(MmError::Overflow) } else { Ok(()) }
}

handle! { Holes of MmShared }

impl<P: Platform> Holes<'_, '_, P> {
    fn punch(self, file: &FileNode, bytes: Range<u64>) {
        let whole = bytes.start.div_ceil(FRAME_SIZE)..bytes.end / FRAME_SIZE;
        let gone = whole.start..whole.end.max(whole.start);
        if !gone.is_empty() {
            FileNotices::of(self.0).tell_file_removed(file, &gone);
        }
        let right = file.resize(self.platform());
        self.drop_pages(&right, &gone);
        // The rest of the range lies in at most two pages.
        let first = bytes.start..bytes.end.min(whole.start * FRAME_SIZE);
        let last = bytes.start.max(whole.end * FRAME_SIZE)..bytes.end;
        self.clear(&right, first.clone());
        if last.start >= first.end {
            self.clear(&right, last);
        }
        drop(right);
        if !gone.is_empty() {
            FileNotices::of(self.0).wake_file(file, &gone);
        }
    }

    /// Unmaps and drops pages, some at a time: meanwhile other tasks wait to use the file.
    fn drop_pages(self, file: &FileResize<'_>, gone: &Range<u64>) {
        let mut at = gone.start;
        while let Some(first) = self.files().next_present(self.platform(), file.node(), at..gone.end) {
            let part = first..gone.end.min(first.saturating_add(LOCK_HOLD_FRAMES as u64));
            let closed = file.node().close(self.platform());
            self.unmap(&closed, &part);
            self.files().drop_hole(self.pages(), &closed, part.clone());
            drop(closed);
            at = part.end;
            self.platform().reschedule_point();
        }
    }

    /// Unmaps pages of the file everywhere, with one flush for each address space.
    fn unmap(self, file: &FileClosed<'_>, pages: &Range<u64>) {
        ReverseMap::of(self.0).each_mapper(file.node(), pages, |found| {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            found.each_part(pages, |vma, range| found.unmap_cached(vma, range, &mut gather));
            found.body.add_rss(self.pages(), gather.finish(), file.node().kind().into());
        });
    }

    /// Clears a range of bytes inside one page.
    fn clear(self, file: &FileResize<'_>, bytes: Range<u64>) {
        if !bytes.is_empty() {
            let start = (bytes.start % FRAME_SIZE) as usize;
            let inside = start..start + (bytes.end - bytes.start) as usize;
            self.files().clear_in_page(self.platform(), file, bytes.start / FRAME_SIZE, inside);
        }
    }

    fn fill(self, file: &FileResize<'_>, bytes: Range<u64>) -> Result<(), MmError> {
        let before = file.node().size(self.platform());
        for index in bytes.start / FRAME_SIZE..bytes.end.div_ceil(FRAME_SIZE) {
            let filled = Reader::of(self.0).with_user(file.node(), |user| {
                self.files().page_behind_end(self.pages(), user, index).map(|_| ())
            });
            if let Err(error) = filled {
                // Pages behind the end are of no use.
                Truncation::of(self.0).set_size(file, before)?;
                return Err(error_of(error));
            }
            self.platform().reschedule_point();
        }
        file.set_bytes(before.max(bytes.end));
        Ok(())
    }

    fn next_data(self, file: &FileNode, offset: u64) -> Option<u64> {
        if !matches!(file.kind(), FileKind::Shmem { .. }) {
            return Some(offset);
        }
        let pages = offset / FRAME_SIZE..u64::MAX;
        let index = self.files().next_present(self.platform(), file, pages)?;
        Some(offset.max(index * FRAME_SIZE))
    }

    fn next_hole(self, file: &FileNode, offset: u64, size: u64) -> u64 {
        if !matches!(file.kind(), FileKind::Shmem { .. }) {
            return size;
        }
        let pages = offset / FRAME_SIZE..size.div_ceil(FRAME_SIZE);
        let hole = self.files().next_missing(self.platform(), file, pages);
        hole.map_or(size, |index| offset.max(index * FRAME_SIZE))
    }
}
