//! The part of an address space that never moves, so that files can point to it.

use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::filemap::{FileViews, Mapper, ViewPtr};
use crate::hugetlb::HugeGroup;
use crate::page_alloc::{Contents, PageAllocator};
use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::RwLock;
use crate::tlb::{MmContext, RssChange};
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::family::MemberCell;
use crate::vm::space::rss::{Counted, RssCells};
use crate::vm::space::state::Space;
use crate::vm::tree::VmaTree;

/// An address space without its reference to the machine's memory.
#[repr(C)]
pub(crate) struct MmBody {
    /// Must be the first field: a `Mapper` pointer is cast to an `MmBody` pointer.
    pub(in crate::vm) mapper: Mapper,
    pub(in crate::vm) space: RwLock<Space>,
    pub(in crate::vm) context: ManuallyDrop<MmContext>,
    pub(in crate::vm) rss: RssCells,
    /// The number of the family's first address space.
    pub(in crate::vm) family: u64,
    pub(in crate::vm) member: MemberCell,
    /// The group that is charged for huge pages.
    pub(in crate::vm) group: AtomicU16,
}

/// Ownership of a body in its memory. It has no `Drop`: the owner returns the memory to its cache.
///
/// # Invariants
///
/// V2. A body is live until no file has a view of it, nothing pins it, and its owner gives it up; only then
///     is it borrowed exclusively.
pub(in crate::vm) struct BodyBox(NonNull<MmBody>);

// SAFETY: V2: a box is the owner's way to a body whose parts may be used and sent by any thread.
unsafe impl Send for BodyBox {}
// SAFETY: V2: a shared box gives shared access only, to parts that any thread may share.
unsafe impl Sync for BodyBox {}

impl MmBody {
    /// The page tables. The caller holds the lock `space` as the method that it calls says, or the address space
    /// is not published yet.
    #[inline]
    pub(in crate::vm) fn tables<'a, 'p, P: Platform>(
        &'a self,
        pages: &'a PageAllocator<'p, P>,
    ) -> PageTables<'a, 'p, P> {
        // SAFETY: W6: a body's context is made with the allocator of the machine's memory, which is the only one
        // here; the verbs of `vm` hold the lock, and gather and flush for the body that they change.
        unsafe { PageTables::new(pages, &self.context) }
    }

    pub(in crate::vm) fn group(&self) -> HugeGroup {
        HugeGroup::from_number(self.group.load(Ordering::Relaxed))
    }

    pub(in crate::vm) fn set_group(&self, group: HugeGroup) {
        self.group.store(group.number(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(in crate::vm) fn add_anon<P: Platform>(&self, pages: &PageAllocator<'_, P>, count: i64) {
        self.rss.add_anon(pages.platform(), count);
        pages.change(Stat::NrAnonPages, count);
    }

    /// Counts a fault that mapped a new page, and whether that was known to be zero.
    #[inline(always)]
    pub(in crate::vm) fn add_new_page<P: Platform>(&self, pages: &PageAllocator<'_, P>, contents: Contents) {
        self.rss.add_anon(pages.platform(), 1);
        let known = i64::from(contents == Contents::Zeroed);
        let changes = [(Stat::Pgfault, 1), (Stat::NrAnonPages, 1), (Stat::PgzeroKnown, known)];
        pages.frames().change_all(changes);
    }

    /// Applies what a gather counted. `counted` names the kind of file, which the page table does not know.
    pub(in crate::vm) fn add_rss<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        change: RssChange,
        counted: Counted,
    ) {
        self.rss.add(pages.platform(), change, counted);
        if counted == Counted::Huge {
            return;
        }
        pages.change(Stat::NrAnonPages, change.anon);
        if change.file != 0 {
            pages.change(Stat::NrMapped, change.file);
        }
    }
}

impl BodyBox {
    /// # Safety
    /// `memory` is valid for reads and writes, aligned, and the caller's alone until the box is given up.
    pub(in crate::vm) unsafe fn new(memory: NonNull<MaybeUninit<MmBody>>, body: MmBody) -> Self {
        let memory = memory.cast::<MmBody>();
        // SAFETY: V2: by this function's contract the memory is valid, aligned and this box's alone.
        unsafe { memory.write(body) };
        Self(memory)
    }

    pub(in crate::vm) const fn as_ptr(&self) -> NonNull<MmBody> {
        self.0
    }

    /// Tells the files which of their mappings are new or changed. The lock is held for writing.
    ///
    /// A search in a file meanwhile must find this address space for every page that it maps (`vm/rmap`), and
    /// pages may have passed from one mapping to another. So first each view gets what its mapping has now,
    /// and keeps what it had. Only when all have theirs do views lose pages.
    pub(in crate::vm) fn show_changed<P: Platform>(&self, platform: &P, tree: &mut VmaTree) {
        let Some(ranges) = tree.take_changed() else { return };
        let mut more = false;
        tree.views_in(&ranges, |view, vma| {
            self.with_views(platform, vma, |views, mapper, number, pages| {
                more |= views.show_more(view, mapper, number, pages, vma.range.start);
            });
        });
        if more {
            tree.views_in(&ranges, |view, vma| {
                self.with_views(platform, vma, |views, mapper, number, pages| {
                    views.show(view, mapper, number, pages, vma.range.start);
                });
            });
        }
    }

    /// Whether the file of a mapping knows its current place and pages.
    pub(in crate::vm) fn is_shown<P: Platform>(&self, platform: &P, view: ViewPtr, vma: &Vma) -> bool {
        let Backing::File { file, page_offset } = &vma.attributes.backing else { return true };
        let pages = *page_offset..page_offset.saturating_add(vma.range.pages());
        file.node().views(platform).knows(view, self.mapper.number(), pages, vma.range.start)
    }

    /// Calls `change` with the views of the file of a mapping, this address space as views name it, and the
    /// pages that the mapping shows. Does nothing for a mapping without a file.
    fn with_views<P: Platform>(
        &self,
        platform: &P,
        vma: &Vma,
        change: impl FnOnce(&mut FileViews, NonNull<Mapper>, u64, Range<u64>),
    ) {
        let Backing::File { file, page_offset } = &vma.attributes.backing else { return };
        let pages = *page_offset..page_offset.saturating_add(vma.range.pages());
        change(&mut file.node().views(platform), self.0.cast::<Mapper>(), self.mapper.number(), pages);
    }
}

impl Deref for BodyBox {
    type Target = MmBody;
    #[inline]
    fn deref(&self) -> &MmBody {
        // SAFETY: V2: the body is live as long as the box, and borrowed shared.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for BodyBox {
    fn deref_mut(&mut self) -> &mut MmBody {
        // SAFETY: V2: the owner borrows exclusively only before any file was told, or after all were told to
        // forget.
        unsafe { self.0.as_mut() }
    }
}
