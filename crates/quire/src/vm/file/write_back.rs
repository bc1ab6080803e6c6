//! Writing a file back while it is mapped.
#![forbid(unsafe_code)]

use crate::error::MmError;
use crate::filemap::{FileNode, PageRuns};
use crate::platform::Platform;
use crate::tlb::FlushBatch;
use crate::vm::handle::handle;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::shared::MmShared;

handle! { WriteBack of MmShared }

impl<P: Platform> WriteBack<'_, '_, P> {
    /// Writes the dirty pages of a file back. The caller holds no lock.
    pub(in crate::vm) fn sync(self, file: &FileNode) -> Result<(), MmError> {
        self.files().write_back(self.pages(), file, |runs| self.protect_pages(file, runs))
    }

    /// Takes the right to store to these pages from every mapping, with one flush for each address space. The
    /// file is closed, so no fault gives the right back meanwhile. A task that has just removed a leaf holds
    /// the lock of the address space until its flush.
    fn protect_pages(self, file: &FileNode, runs: &PageRuns) {
        ReverseMap::of(self.0).each_mapper(file, &runs.hull(), |found| {
            let mut owed = FlushBatch::new();
            for run in runs.as_slice() {
                found.each_part(run, |vma, range| {
                    if !vma.attributes.is_private() {
                        // Large leaves onto pages of the pager never allow stores.
                        let range = found.between_large(range);
                        let done = found.tables().forbid_stores(range, &mut owed);
                        debug_assert_eq!(done, Ok(()), "no large leaf reaches over the ends");
                    }
                });
            }
            owed.flush(self.pages(), &found.body.context);
        });
    }
}
