//! Stores to pages that are mapped read-only: copy-on-write, and the first store to a shared page.

use super::file::is_shared_writable;
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr};
use crate::arch::EntryFlags;
use crate::error::{FaultError, MapError};
use crate::filemap::FileKind;
use crate::page_alloc::Origin;
use crate::pgtable::Lookup;
use crate::platform::{Platform, TouchHint};
use crate::stats::Stat;
use crate::tlb::RssChange;
use crate::vm::fault::faults::Faults;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::fault::step::{FaultKind, Step};
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::rss::counted;

/// The bits of a leaf that was made writable for a store.
pub(super) const STORED: EntryFlags =
    EntryFlags::WRITE.union(EntryFlags::DIRTY).union(EntryFlags::ACCESSED).union(EntryFlags::SOFT_DIRTY);

impl<P: Platform> Faults<'_, '_, P> {
    #[inline(never)]
    pub(super) fn fault_protected(
        self,
        vma: &Vma,
        addr: VirtAddr,
        found: Lookup,
    ) -> Result<Step, FaultError> {
        let Some(size) = found.leaf_size() else { return Ok(Step::Again) };
        let leaf = found.entry;
        if leaf.has(EntryFlags::UFFD_WP) {
            return Err(FaultError::Marked);
        }
        if vma.attributes.huge_size().is_some() {
            return self.fault_protected_huge(vma, addr, &found);
        }
        // This keeps the file open: the page must not be marked clean between the dirty mark and the leaf,
        // nor be dropped and read again into the same frame while it is copied.
        let used = match &vma.attributes.backing {
            Backing::Anonymous => None,
            Backing::File { file, .. } => match file.node().enter() {
                None => return Ok(Step::Again),
                used => used,
            },
        };
        let ours = leaf.has(EntryFlags::ANON) && self.is_exclusive(leaf.frame(), size);
        if is_shared_writable(vma) {
            if size == PageSize::Size2M && self.note_stores_by_page(vma) {
                return self.split_for_copy(addr);
            }
            self.note_store(vma, addr);
        }
        if ours || is_shared_writable(vma) {
            if !self.tables().upgrade(addr, size, leaf, STORED) {
                return Ok(Step::Again);
            }
            self.memory.pages().count(Stat::CowReuse, 1);
            return Ok(Step::done(size.order(), FaultKind::Reuse));
        }
        if size != PageSize::Size4K {
            return self.split_for_copy(addr);
        }
        if used.is_some() && self.tables().lookup(addr).entry != leaf {
            return Ok(Step::Again);
        }
        self.copy_page(vma, addr, &found)
    }

    /// Whether no other leaf maps any frame of the leaf at `frame`. Exact: only `fork` could add a leaf to a
    /// page that this address space alone maps, and the lock for reading keeps `fork` out.
    fn is_exclusive(self, frame: Frame, size: PageSize) -> bool {
        let pages = self.memory.pages();
        match size {
            PageSize::Size4K => pages.counts().is_mapped_by_one(frame),
            PageSize::Size2M => pages.counts().is_block_mapped_once(frame),
            PageSize::Size1G => pages.counts().is_gigantic_mapped_once(frame),
        }
    }

    /// Whether each page of the mapping is marked dirty by itself when it is stored to. A large leaf, mapped
    /// while no task could store, is split then.
    fn note_stores_by_page(self, vma: &Vma) -> bool {
        matches!(&vma.attributes.backing, Backing::File { file, .. } if matches!(file.node().kind(), FileKind::Paged(_)))
    }

    /// Marks a page of a file of the pager dirty. Its leaf keeps it in memory.
    fn note_store(self, vma: &Vma, addr: VirtAddr) {
        if let (Backing::File { file, .. }, Some(index)) = (&vma.attributes.backing, vma.file_page(addr))
            && matches!(file.node().kind(), FileKind::Paged(_))
        {
            self.memory.files().mark_dirty(self.memory.platform(), file.node(), index);
        }
    }

    /// Splits a large leaf, since only the page that is stored to is copied.
    fn split_for_copy(self, addr: VirtAddr) -> Result<Step, FaultError> {
        // The split needs a border inside the leaf, not its start.
        let page = addr.align_down(PageSize::Size4K.bytes());
        let inside =
            if page.is_aligned(PageSize::Size2M.bytes()) { page.add(PageSize::Size4K.bytes()) } else { page };
        match self.tables().split_at(inside) {
            Ok(()) => Ok(Step::Again),
            Err(MapError::OutOfMemory) => Err(FaultError::OutOfMemory),
            Err(_) => Err(FaultError::NotMapped),
        }
    }

    /// Replaces a page by a copy, which is made before the leaf is exchanged. Another CPU may copy the same
    /// page meanwhile, or drop it, and the original may be freed. Then the leaf has changed, and this copy is
    /// dropped: no fault maps private memory without the right to store, so none restores the leaf.
    #[inline(never)]
    fn copy_page(self, vma: &Vma, addr: VirtAddr, found: &Lookup) -> Result<Step, FaultError> {
        let (pages, leaf) = (self.memory.pages(), found.entry);
        let copy = if leaf.has(EntryFlags::SPECIAL) {
            pages.requests().alloc_zero_page(self.request_for(vma))?
        } else {
            let copy = pages.alloc(self.request_for(vma), Order::FRAME)?;
            let from = FrameRange::folio(leaf.frame(), Order::FRAME);
            // SAFETY: invariant 1: this task has just allocated the target. The source is memory, since the leaf
            // is not special; where another CPU has freed it meanwhile, it may be the target itself.
            unsafe { pages.frames().copy_frames(from, copy.frame(), TouchHint::Soon) };
            copy
        };
        let flags = leaf_flags(&vma.attributes, true).union(EntryFlags::ANON);
        let origin = Origin::new(self.family, vma.attributes.origin_of(addr));
        // SAFETY: invariant 1: the copy's value is given up once the leaf is there.
        let replaced = unsafe { self.tables().replace_page(found, addr, (copy.frame(), origin), flags) };
        let Ok(Some(change)) = replaced else {
            self.memory.give_up(copy);
            return replaced.map(|_| Step::Again).map_err(|_| FaultError::OutOfMemory);
        };
        // The leaf owns it.
        let _ = copy.into_raw();
        let change = RssChange { anon: change.anon + 1, ..change };
        if change != RssChange::default() {
            self.add_rss(change, counted(vma));
        }
        pages.count(Stat::CowCopy, 1);
        Ok(Step::done(Order::FRAME, FaultKind::Cow))
    }
}
