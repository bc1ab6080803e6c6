//! Allocates and frees mapping records and bodies of address spaces, and releases references to files.

use core::ptr::NonNull;

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::{AllocError, MmError};
use crate::filemap::{FileKind, FileNode, FileRef};
use crate::hugetlb::HugeSize;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes};
use crate::vm::space::body::{BodyBox, MmBody};
use crate::vm::space::shared::MmShared;
use crate::vm::tree::edit::Spares;
use crate::vm::tree::{VmaBox, VmaList};

impl<P: Platform> MmShared<'_, P> {
    pub(in crate::vm) fn body(
        &self,
        make: impl FnOnce() -> Result<MmBody, MmError>,
    ) -> Result<BodyBox, MmError> {
        let room = self.bodies.alloc(&self.pages)?;
        match make() {
            // SAFETY: S2: fresh memory of the cache for one body, given back by `give_back_body` alone.
            Ok(body) => Ok(unsafe { BodyBox::new(room, body) }),
            Err(error) => {
                // SAFETY: S2: it was just handed out, and holds nothing.
                unsafe { self.bodies.free(&self.pages, room) };
                Err(error)
            }
        }
    }

    /// Frees the memory of an address space that was torn down.
    ///
    /// # Safety
    /// `body` came from [`Self::body`], and no code uses it any more.
    pub(in crate::vm) unsafe fn give_back_body(&self, body: NonNull<MmBody>) {
        // SAFETY: V2: by this function's contract no code uses the body any more; its contents were taken out
        // or need no drop.
        unsafe { self.bodies.free(&self.pages, body.cast()) };
    }

    /// A node with a placeholder mapping, for the caller to overwrite.
    pub(in crate::vm) fn blank(&self) -> Result<VmaBox, AllocError> {
        let memory = match self.vmas.alloc(&self.pages) {
            Err(_) if self.reclaim() > 0 => self.vmas.alloc(&self.pages)?,
            first => first?,
        };
        let nothing = VirtRange::new(VirtAddr(0), VirtAddr(FRAME_SIZE));
        let vma = Vma::new(nothing, VmaAttributes::anonymous(Protection::NONE));
        // SAFETY: S2: fresh memory of the cache for one node, given back by `discard` alone.
        Ok(unsafe { VmaBox::new(memory, vma) })
    }

    /// As many nodes as an edit needs, all or none.
    pub(in crate::vm) fn spares(&self, count: usize) -> Result<Spares, MmError> {
        let mut spares = Spares::new();
        for _ in 0..count {
            match self.blank() {
                Ok(node) => {
                    let back = spares.put(node);
                    debug_assert!(back.is_none(), "more spares than any edit takes");
                }
                Err(error) => {
                    self.discard_spares(spares);
                    return Err(error.into());
                }
            }
        }
        Ok(spares)
    }

    /// Frees a node and releases its reference to a file. May block in the pager, so the caller must not hold
    /// the lock of an address space for writing.
    pub(in crate::vm) fn discard(&self, node: VmaBox) {
        if let Backing::File { file, .. } = &node.attributes.backing {
            file.node().views(self.platform()).hide(node.view());
        }
        let (memory, vma) = node.into_raw();
        // SAFETY: S2: the memory is what `blank` took from this cache, and no other code knows it any more.
        unsafe { self.vmas.free(&self.pages, memory) };
        if let Backing::File { file, .. } = vma.attributes.backing {
            self.close(file);
        }
    }

    pub(in crate::vm) fn discard_list(&self, mut list: VmaList) {
        while let Some(node) = list.pop() {
            self.discard(node);
        }
    }

    pub(in crate::vm) fn discard_spares(&self, mut spares: Spares) {
        while let Some(node) = spares.take() {
            self.discard(node);
        }
    }

    /// Releases a reference to a file. Pages that cannot be written are lost, as in Linux when the last
    /// mapping of a file goes: only `msync` and `fsync` report it.
    pub(in crate::vm) fn close(&self, file: FileRef) {
        if file.node().huge_order().is_some() {
            return self.close_huge(file);
        }
        let _lost = self.files.close(&self.pages, file);
    }

    /// Releases a reference to a file of huge pages; the last one returns its pages to the pool.
    fn close_huge(&self, file: FileRef) {
        let Err(file) = self.files().withdraw(self.platform(), file) else { return };
        let (size, fs) = huge_kind(file.node());
        self.gigantic_clears().cancel_of_file(self.pages(), file.node(), &(0..u64::MAX));
        self.huge().drop_pages(self.pages(), self.files(), (file.node(), fs), (size, 0..u64::MAX));
        let closed = self.files().close(self.pages(), file);
        debug_assert_eq!(closed, Ok(()), "there is nothing to write");
        self.huge().count_fs_files(self.platform(), fs, -1);
    }
}

/// The size of a file's huge pages, and the number of its file system.
pub(in crate::vm) fn huge_kind(file: &FileNode) -> (HugeSize, u8) {
    match file.kind() {
        FileKind::Huge { order, fs, .. } => (HugeSize::of_order(order).unwrap_or(HugeSize::Size2M), fs),
        FileKind::Paged(_) | FileKind::Shmem { .. } => (HugeSize::Size2M, 0),
    }
}
