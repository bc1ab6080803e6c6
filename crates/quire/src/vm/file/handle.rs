//! A handle on a file, for callers of `mmap`.

use core::mem::ManuallyDrop;
use core::ops::Deref;

use crate::addr::{Frame, VirtAddr};
use crate::arch::{EntryFlags, Protection};
use crate::error::MmError;
use crate::filemap::FileRef;
use crate::platform::{FileId, Platform};
use crate::vm::file::write_back::WriteBack;
use crate::vm::reclaim::shrink::Reclaim;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::space::shared::MmShared;

/// A counted handle on a file's page cache. Pages stay cached as long as a handle or a mapping exists; when
/// the last goes, dirty pages are written back and all pages are dropped.
pub struct File<'m, P: Platform> {
    memory: &'m MmShared<'m, P>,
    file: ManuallyDrop<FileRef>,
}

impl<'m, P: Platform> File<'m, P> {
    /// Opens a file of the machine's pager.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn open(memory: &'m MmShared<'m, P>, file: FileId) -> Result<Self, MmError> {
        Reclaim::of(memory).begin_with_files();
        let file = memory.files().open(memory.pages(), file)?;
        Ok(Self::from_parts(memory, file))
    }

    /// Makes shared anonymous memory of `bytes` bytes, for several address spaces to map.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn shmem(memory: &'m MmShared<'m, P>, bytes: u64) -> Result<Self, MmError> {
        let file = memory.files().shmem(memory.pages(), bytes)?;
        Ok(Self::from_parts(memory, file))
    }

    pub(in crate::vm) fn from_parts(memory: &'m MmShared<'m, P>, file: FileRef) -> Self {
        Self { memory, file: ManuallyDrop::new(file) }
    }

    pub(in crate::vm) fn memory(&self) -> &'m MmShared<'m, P> {
        self.memory
    }

    /// Writes dirty pages back now. Until the next store, mappings lose the right to store. The caller holds
    /// no lock.
    ///
    /// # Errors
    /// [`MmError::Io`]; the pages that could not be written stay dirty.
    pub fn sync(&self) -> Result<(), MmError> {
        WriteBack::of(self.memory.sleepable()).sync(self.node())
    }

    /// Shows the root of each address space that maps a page of the file, and the address, without private
    /// copies. The caller holds no lock.
    pub fn mappings(&self, page: u64, mut show: impl FnMut(Frame, VirtAddr)) {
        let pages = page..page.saturating_add(1);
        ReverseMap::of(self.memory.sleepable()).each_mapper(self.node(), &pages, |found| {
            found.each_part(&pages, |_, range| {
                let leaf = found.tables().lookup(range.start).entry;
                if leaf.is_present() && !leaf.has(EntryFlags::ANON) {
                    show(found.body.context.root(), range.start);
                }
            });
        });
    }

    /// A number that no other file has while there is a handle on this one or a mapping of it. It tells which
    /// file a mapping maps ([`VmaInfo::file_number`](crate::vm::VmaInfo::file_number)).
    pub fn number(&self) -> u64 {
        self.node().number()
    }

    /// How many mappings the file has, in all address spaces. Visits each. (Linux: `shm_nattch`.)
    pub fn mapping_count(&self) -> usize {
        self.node().views(self.memory.platform()).count()
    }

    /// Whether no address space maps the file.
    pub fn is_unmapped(&self) -> bool {
        self.node().views(self.memory.platform()).is_empty()
    }

    /// Whether any mapping may store to the file, now or after `mprotect`: a shared one that is not confined to reads.
    /// The caller holds no lock.
    pub fn may_be_stored_to(&self) -> bool {
        let (mut found, all) = (false, 0..u64::MAX);
        ReverseMap::of(self.memory.sleepable()).each_mapper(self.node(), &all, |space| {
            space.each_part(&all, |vma, _| {
                found |= !vma.attributes.is_private() && vma.attributes.may.contains(Protection::WRITE);
            });
        });
        found
    }

    /// How many pages of the file are in memory.
    pub fn resident(&self) -> u64 {
        self.memory.files().resident(self.memory.platform(), self.node())
    }

    /// How many pages are newer than in the pager.
    pub fn dirty(&self) -> u64 {
        self.memory.files().dirty(self.memory.platform(), self.node())
    }
}

impl<P: Platform> Deref for File<'_, P> {
    type Target = FileRef;
    fn deref(&self) -> &FileRef {
        &self.file
    }
}

impl<P: Platform> Drop for File<'_, P> {
    fn drop(&mut self) {
        // SAFETY: F1: the handle accounts for this reference and is being dropped, so no code uses it later.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        self.memory.close(file);
    }
}
