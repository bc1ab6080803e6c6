//! An address space: its mappings, its page table, and how much of it is resident.
//!
//! # Locks
//!
//! `space` (rank `AddressSpace`) guards the mappings and the existence of page-table pages. Faults,
//! populating and advice that drops pages take it for reading, so any number run at once; each then locks the
//! one leaf table that it changes, and checks again under that lock. Verbs that change mappings, or detach
//! tables, take it for writing; `beside.rs` says when faults go on meanwhile. A fault that needs more (to
//! grow a stack, to reclaim, to read a page of a file) releases the lock first and starts over.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::AtomicU16;

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::PagingMode;
use crate::error::MmError;
use crate::filemap::{FileKind, Mapper};
use crate::limits::MAX_MAPPINGS;
use crate::page_alloc::Contents;
use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::{ReadGuard, RwLock};
use crate::tlb::{MmContext, RssChange, ZapStrategy};
use crate::vm::mapping::vma::Backing;
use crate::vm::space::body::{BodyBox, MmBody};
use crate::vm::space::family::MemberCell;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::limits::MappedLimits;
use crate::vm::space::rss::{Counted, RssCells};
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::{LockMode, Space};
use crate::vm::tree::VmaTree;
use crate::vm::tree::layout::Layout;

pub(crate) struct AddressSpace<'m, P: Platform> {
    pub(in crate::vm) memory: &'m MmShared<'m, P>,
    body: BodyBox,
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// An empty address space, of a family of its own.
    pub(in crate::vm) fn new(
        memory: &'m MmShared<'m, P>,
        mode: PagingMode,
        zap: ZapStrategy,
    ) -> Result<Self, MmError> {
        let made = Self::new_unpublished(memory, mode, zap, None)?;
        made.enter_family();
        Ok(made)
    }

    /// An empty address space that cannot be found yet: [`Self::enter_family`] publishes it. It gets a family
    /// of its own if none is named.
    pub(in crate::vm) fn new_unpublished(
        memory: &'m MmShared<'m, P>,
        mode: PagingMode,
        zap: ZapStrategy,
        family: Option<u64>,
    ) -> Result<Self, MmError> {
        let layout = Layout::new(mode);
        let space = Space {
            tree: VmaTree::new(),
            layout,
            brk: (layout.lowest, layout.lowest),
            lock_future: LockMode::None,
            stack_limit: u64::MAX,
            limits: MappedLimits::NONE,
            mapping_limit: MAX_MAPPINGS,
            moved: false,
            huge: false,
            handled: false,
        };
        let number = memory.next_number();
        let body = memory.body(|| {
            let context = PageTables::create(memory.pages(), mode).map_err(|_| MmError::NoMemory)?;
            Ok(MmBody {
                mapper: Mapper::new(number),
                space: RwLock::new(Rank::AddressSpace, space),
                context: ManuallyDrop::new(context.taken_apart_by(zap)),
                rss: RssCells::default(),
                family: family.unwrap_or(number),
                member: MemberCell::new(),
                group: AtomicU16::new(0),
            })
        })?;
        Ok(Self { memory, body })
    }

    /// Makes the address space one of its family: from here on the reverse map finds it.
    pub(in crate::vm) fn enter_family(&self) {
        self.memory.families().insert(self.body().as_ptr(), self.family, self.mapper.number());
    }

    /// Removes the address space from its family and from all files, and waits until nothing pins it.
    pub(in crate::vm) fn leave_files(&self) {
        let platform = self.memory.platform();
        let space = self.space.write(platform);
        for (view, vma) in space.tree.views() {
            if let Backing::File { file, .. } = &vma.attributes.backing {
                file.node().views(platform).hide(view);
            }
        }
        drop(space);
        self.memory.families().remove(self.body().as_ptr());
        while self.mapper.is_pinned() {
            platform.relax();
        }
    }

    pub(in crate::vm) fn body(&self) -> &BodyBox {
        &self.body
    }

    pub(in crate::vm) fn number(&self) -> u64 {
        self.mapper.number()
    }

    pub(in crate::vm) fn layout(&self) -> Layout {
        self.space.read(self.memory.platform()).layout
    }

    pub(in crate::vm) fn locks_future(&self) -> bool {
        self.space.read(self.memory.platform()).lock_future != LockMode::None
    }

    pub(in crate::vm) fn heap(&self) -> Range<VirtAddr> {
        let (start, end) = self.space.read(self.memory.platform()).brk;
        start..end
    }

    #[inline]
    pub(in crate::vm) fn context(&self) -> &MmContext {
        &self.context
    }

    #[inline]
    pub(in crate::vm) fn tables(&self) -> PageTables<'_, 'm, P> {
        self.body.tables(self.memory.pages())
    }

    /// Takes the lock for reading, for a task that looks at and changes only what is in `range`: it does not
    /// wait for a verb that works elsewhere and admits it.
    #[inline(always)]
    pub(in crate::vm) fn read_beside(&self, range: impl FnOnce() -> VirtRange) -> ReadGuard<'_, Space, P> {
        self.space.read_beside(self.memory.platform(), || {
            let range = range();
            range.start.0..range.end.0
        })
    }

    /// Takes the lock for writing. Its release first tells the files which mappings changed.
    pub(in crate::vm) fn lock(&self) -> SpaceGuard<'_, P> {
        let space = self.space.write(self.memory.platform());
        SpaceGuard { space, body: &self.body, platform: self.memory.platform() }
    }

    /// The same if no other task holds the lock now.
    pub(in crate::vm) fn try_lock(&self) -> Option<SpaceGuard<'_, P>> {
        let space = self.space.try_write(self.memory.platform())?;
        Some(SpaceGuard { space, body: &self.body, platform: self.memory.platform() })
    }

    /// As [`Self::lock`] for an address space that is not published yet, whatever locks the caller holds.
    pub(in crate::vm) fn lock_unpublished(&self) -> SpaceGuard<'_, P> {
        let space = self.space.write_unknown(self.memory.platform());
        SpaceGuard { space, body: &self.body, platform: self.memory.platform() }
    }

    #[inline(always)]
    pub(in crate::vm) fn add_anon(&self, pages: i64) {
        self.body.add_anon(self.memory.pages(), pages);
    }

    #[inline(always)]
    pub(in crate::vm) fn add_new_page(&self, contents: Contents) {
        self.body.add_new_page(self.memory.pages(), contents);
    }

    #[inline]
    pub(in crate::vm) fn add_file(&self, kind: FileKind, pages: i64) {
        self.rss.add_as(self.memory.platform(), kind.into(), pages);
        self.memory.pages().change(Stat::NrMapped, pages);
    }

    /// Applies what a gather counted. `counted` names the kind of file, which the page table does not know.
    pub(in crate::vm) fn add_rss(&self, change: RssChange, counted: Counted) {
        self.body.add_rss(self.memory.pages(), change, counted);
    }
}

impl<P: Platform> Deref for AddressSpace<'_, P> {
    type Target = MmBody;
    #[inline]
    fn deref(&self) -> &MmBody {
        &self.body
    }
}

impl<P: Platform> DerefMut for AddressSpace<'_, P> {
    fn deref_mut(&mut self) -> &mut MmBody {
        &mut self.body
    }
}
