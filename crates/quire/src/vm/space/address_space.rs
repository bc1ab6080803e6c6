//! An address space: its mappings, its page table, and how much of it is resident.
//!
//! # Locks
//!
//! `space` (rank `AddressSpace`) guards the mappings and the existence of page-table pages. Faults and
//! populating take it for reading, so any number run at once; each then takes the lock of the one leaf table
//! that it changes, and looks again under it. Everything that changes mappings, or takes leaves away over a
//! range, takes it for writing. A fault that needs more (to grow a stack, to make room) gives the lock back
//! first and starts over.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU8;

use crate::addr::Frame;
use crate::arch::PagingMode;
use crate::error::MmError;
use crate::filemap::{FileKind, Mapper};
use crate::hugetlb::HugeGroup;
use crate::limits::MAX_MAPPINGS;
use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::RwLock;
use crate::tlb::{MmContext, RssChange, ZapStrategy};
use crate::vm::mapping::vma::Backing;
use crate::vm::space::body::{BodyBox, MmBody};
use crate::vm::space::family::MemberCell;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::rss::{Counted, RssCells};
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::{LockMode, Space};
use crate::vm::tree::VmaTree;
use crate::vm::tree::layout::Layout;

/// An address space.
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
        made.join_family();
        Ok(made)
    }

    /// An empty address space that is in its family already by name, but is not found there yet: of its own
    /// if none is named.
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
                group: AtomicU8::new(0),
            })
        })?;
        Ok(Self { memory, body })
    }

    /// Makes the address space one of its family: from here on it is found.
    pub(in crate::vm) fn join_family(&self) {
        self.memory.families().join(self.body().as_ptr(), self.family, self.mapper.number());
    }

    /// Takes the address space out of its family's and every file's sight, and waits for the tasks that have
    /// found it before.
    pub(in crate::vm) fn leave_files(&self) {
        let platform = self.memory.platform();
        let space = self.space.write(platform);
        for (view, vma) in space.tree.views() {
            if let Backing::File { file, .. } = &vma.attributes.backing {
                file.node().views(platform).hide(view);
            }
        }
        drop(space);
        self.memory.families().leave(self.body().as_ptr());
        while self.mapper.is_pinned() {
            platform.relax();
        }
    }

    /// What others may find of the address space.
    pub(in crate::vm) fn body(&self) -> &BodyBox {
        &self.body
    }

    /// See [`Mm::switch_in`](crate::vm::Mm::switch_in).
    pub(in crate::vm) fn switch_in(&self) {
        self.context.switch_in(self.memory.platform());
    }

    /// See [`Mm::switch_out`](crate::vm::Mm::switch_out).
    pub(in crate::vm) fn switch_out(&self) {
        self.context.switch_out(self.memory.platform());
    }

    /// See [`Mm::number`](crate::vm::Mm::number).
    pub(in crate::vm) fn number(&self) -> u64 {
        self.mapper.number()
    }

    /// See [`Mm::root`](crate::vm::Mm::root).
    pub(in crate::vm) fn root(&self) -> Frame {
        self.context.root()
    }

    /// See [`Mm::set_stack_limit`](crate::vm::Mm::set_stack_limit).
    pub(in crate::vm) fn set_stack_limit(&self, bytes: u64) {
        self.lock().stack_limit = bytes;
    }

    /// See [`Mm::set_mapping_limit`](crate::vm::Mm::set_mapping_limit).
    pub(in crate::vm) fn set_mapping_limit(&self, count: usize) {
        self.lock().mapping_limit = count;
    }

    /// See [`Mm::set_huge_group`](crate::vm::Mm::set_huge_group).
    pub(in crate::vm) fn set_huge_group(&self, group: HugeGroup) {
        self.set_group(group);
    }

    /// See [`Mm::layout`](crate::vm::Mm::layout).
    pub(in crate::vm) fn layout(&self) -> Layout {
        self.space.read(self.memory.platform()).layout
    }

    #[inline]
    pub(in crate::vm) fn context(&self) -> &MmContext {
        &self.context
    }

    #[inline]
    pub(in crate::vm) fn tables(&self) -> PageTables<'_, 'm, P> {
        PageTables::new(self.memory.pages(), &self.context)
    }

    /// Takes the lock for writing. The files are told what changed before it is given back.
    pub(in crate::vm) fn lock(&self) -> SpaceGuard<'_, P> {
        let space = self.space.write(self.memory.platform());
        SpaceGuard { space, body: &self.body, platform: self.memory.platform() }
    }

    /// The same for an address space that is not published yet, whatever the caller holds.
    pub(in crate::vm) fn lock_unpublished(&self) -> SpaceGuard<'_, P> {
        let space = self.space.write_unknown(self.memory.platform());
        SpaceGuard { space, body: &self.body, platform: self.memory.platform() }
    }

    #[inline]
    pub(in crate::vm) fn add_anon(&self, pages: i64) {
        self.body.add_anon(self.memory.pages(), pages);
    }

    #[inline]
    pub(in crate::vm) fn add_file(&self, kind: FileKind, pages: i64) {
        self.rss.add_as(self.memory.platform(), kind.into(), pages);
        self.memory.pages().change(Stat::NrMapped, pages);
    }

    /// Applies what a gather found. The page table does not know one kind of file from another; the caller
    /// does.
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
