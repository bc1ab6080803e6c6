//! Truncation: a file gets another size; pages behind a nearer end are unmapped everywhere and dropped.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::error::MmError;
use crate::filemap::{FileKind, FileNode};
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
    /// Gives the file another size. Pages wholly behind a nearer end are unmapped in every address space,
    /// private copies included, and leave memory without being written; what a page that stays holds behind
    /// the end becomes zeroes. Once it returns, accesses behind the end are
    /// [`BeyondEnd`](crate::error::FaultError::BeyondEnd). A farther end adds zeroes, save what mappings have
    /// stored behind the old end in its last page (as Linux's tmpfs). The caller holds no lock; may block in
    /// the pager.
    ///
    /// # Errors
    /// [`MmError::Io`] when the pager cannot, [`MmError::Invalid`] when the file has huge pages and the size
    /// is no multiple of theirs; nothing has changed then.
    pub fn truncate(&self, bytes: u64) -> Result<(), MmError> {
        Truncation::of(self.memory()).resize(self.node(), bytes)
    }
}

handle! {
    /// Gives files another size.
    Truncation of MmShared
}

impl<P: Platform> Truncation<'_, '_, P> {
    fn resize(self, file: &FileNode, bytes: u64) -> Result<(), MmError> {
        let platform = self.platform();
        if file.huge_order().is_some() {
            return HugeFiles::of(self.0).resize_huge(file, bytes);
        }
        let end = bytes.div_ceil(FRAME_SIZE);
        // Before the right to resize is taken, which the reader of the event may want.
        let shorter = bytes < file.size(platform);
        if shorter {
            FileNotices::of(self.0).tell_file_removed(file, &(end..u64::MAX));
        }
        let resize = file.resize(platform);
        match file.kind() {
            FileKind::Paged(name) => platform.pager().resize(name, bytes).map_err(|_| MmError::Io)?,
            FileKind::Shmem { .. } | FileKind::Huge { .. } => resize.set_bytes(bytes),
        }
        // After this no task uses a page behind the end, and none gets one: what is mapped now is all there is.
        resize.cut_off(platform, end);
        self.unmap_pages(file, &(end..u64::MAX));
        self.files().drop_from(self.pages(), &resize, end);
        if !bytes.is_multiple_of(FRAME_SIZE) {
            self.files().clear_end(platform, &resize, bytes);
        }
        drop(resize);
        if shorter {
            FileNotices::of(self.0).wake_file(file, &(end..u64::MAX));
        }
        Ok(())
    }

    /// Unmaps these pages of a file, and private copies of them, in every address space: one flush for each
    /// that maps some.
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
