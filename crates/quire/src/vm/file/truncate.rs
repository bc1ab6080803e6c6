//! Truncation: resizes a file; pages behind a nearer end are unmapped everywhere and dropped.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::error::MmError;
use crate::filemap::{FileKind, FileNode, FileResize};
use crate::limits::FRAME_SIZE;
use crate::pgtable::Zap;
use crate::platform::{Pager, Platform};
use crate::tlb::MmuGather;
use crate::vm::file::handle::File;
use crate::vm::handle::handle;
use crate::vm::hugetlb::file::HugeFiles;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::shared::MmShared;
use crate::vm::userfault::changes::FileNotices;

impl<P: Platform> File<'_, P> {
    /// Resizes the file. Pages wholly behind a nearer end are unmapped in every address space, private copies
    /// included, and dropped without being written; in the last page, bytes behind the end become zero. Once
    /// this returns, accesses behind the end get [`BeyondEnd`](crate::error::FaultError::BeyondEnd). A
    /// farther end adds zeroes, except what mappings stored behind the old end in its last page (as in
    /// Linux's tmpfs). The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MmError::Io`] when the pager fails, [`MmError::Invalid`] when the file has huge pages and the size
    /// is no multiple of theirs. Nothing has changed then.
    pub fn truncate(&self, bytes: u64) -> Result<(), MmError> {
        Truncation::of(self.memory().sleepable()).resize(self.node(), bytes)
    }
}

handle! { Truncation of MmShared }

impl<P: Platform> Truncation<'_, '_, P> {
    fn resize(self, file: &FileNode, bytes: u64) -> Result<(), MmError> {
        let platform = self.platform();
        if file.huge_order().is_some() {
            return HugeFiles::of(self.0).resize_huge(file, bytes);
        }
        let end = bytes.div_ceil(FRAME_SIZE);
        // Before taking the right to resize, which the handler that reads the event may need.
        let shorter = bytes < file.size(platform);
        if shorter {
            FileNotices::of(self.0).tell_file_removed(file, &(end..u64::MAX));
        }
        self.set_size(&file.resize(platform), bytes)?;
        if shorter {
            FileNotices::of(self.0).wake_file(file, &(end..u64::MAX));
        }
        Ok(())
    }

    /// The same for the task that has the right to resize the file, which is not of huge pages. Tells no
    /// handler.
    pub(super) fn set_size(self, resize: &FileResize<'_>, bytes: u64) -> Result<(), MmError> {
        let (platform, file) = (self.platform(), resize.node());
        let end = bytes.div_ceil(FRAME_SIZE);
        match file.kind() {
            FileKind::Paged(name) => platform.pager().resize(name, bytes).map_err(|_| MmError::Io)?,
            FileKind::Shmem { .. } | FileKind::Huge { .. } => resize.set_bytes(bytes),
        }
        // After this no task uses a page behind the end or maps a new one, so one pass unmaps them all.
        resize.cut_off(platform, end);
        self.unmap_pages(file, &(end..u64::MAX));
        self.files().drop_from(self.pages(), resize, end);
        if !bytes.is_multiple_of(FRAME_SIZE) {
            self.files().clear_end(platform, resize, bytes);
        }
        Ok(())
    }

    /// Unmaps these pages of a file, and private copies of them, with one flush for each address space.
    fn unmap_pages(self, file: &FileNode, pages: &Range<u64>) {
        ReverseMap::of(self.0).each_mapper(file, pages, |found| {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            found.each_part(pages, |vma, range| {
                found.part_large(vma, range, &mut gather);
                let done = found.tables().unmap(&Zap::leaves(range), &mut gather);
                debug_assert_eq!(done, Ok(()), "no large leaf reaches over the ends");
            });
            found.body.add_rss(self.pages(), gather.finish(), file.kind().into());
        });
    }
}
