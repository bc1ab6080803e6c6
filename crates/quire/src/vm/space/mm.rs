//! An address space: its mappings, its page table, and how much of it is resident.
//!
//! # Locks
//!
//! `space` (rank `AddressSpace`) guards the mappings and the existence of page-table pages. Faults and populating take
//! it for reading, so any number run at once; each then takes the lock of the one leaf table that it changes, and looks
//! again under it. Everything that changes mappings, or takes leaves away over a range, takes it for writing. A fault
//! that needs more (to grow a stack, to make room) gives the lock back first and starts over.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU8;

use crate::addr::{Frame, VirtAddr, VirtRange};
use crate::arch::PagingMode;
use crate::error::{MapError, MmError};
use crate::filemap::{FileKind, Mapper};
use crate::limits::MAX_MAPPINGS;
use crate::pgtable::{GrantWrite, PageTables, Zap};
use crate::platform::Platform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::{RwLock, WriteGuard};
use crate::tlb::{FlushBatch, MmContext, MmuGather, RssChange, ZapStrategy};
use crate::vm::hugetlb::mapping::cuts;
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::space::body::{BodyBox, MmBody};
use crate::vm::space::family::MemberCell;
use crate::vm::space::rss::{Counted, RssCells};
use crate::vm::space::shared::Memory;
use crate::vm::tree::VmaTree;
use crate::vm::tree::layout::Layout;

/// How new mappings are locked (`mlockall(MCL_FUTURE)`), or a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockMode {
    /// Not.
    #[default]
    None,
    /// Pages are brought in at once.
    Now,
    /// Pages are locked as they come.
    OnFault,
}

/// The mappings of an address space and what belongs to them.
pub(in crate::vm) struct Space {
    pub(in crate::vm) tree: VmaTree,
    pub(in crate::vm) layout: Layout,
    /// Where the heap starts, and the byte at which it ends.
    pub(in crate::vm) brk: (VirtAddr, VirtAddr),
    pub(in crate::vm) lock_future: LockMode,
    /// Bytes that a mapping which grows down may reach (`RLIMIT_STACK`).
    pub(in crate::vm) stack_limit: u64,
    /// Mappings that verbs may cut it into (`vm.max_map_count`).
    pub(in crate::vm) mapping_limit: usize,
    /// Whether private memory was ever moved to other addresses, here or before a fork.
    pub(in crate::vm) moved: bool,
    /// Whether huge pages were ever mapped, here or before a fork.
    pub(in crate::vm) huge: bool,
    /// Whether anything ever had a handler of faults, here or before a fork.
    pub(in crate::vm) handled: bool,
}

/// Resident pages by kind, as `/proc/PID/status` counts them (`RssAnon`, `RssFile`, `RssShmem`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rss {
    /// Private pages of 4 KiB.
    pub anon: u64,
    /// Pages of files.
    pub file: u64,
    /// Pages of nameless shared memory.
    pub shmem: u64,
    /// Huge pages, in pages of 4 KiB (`HugetlbPages`).
    pub huge: u64,
    /// Page-table pages.
    pub page_tables: u64,
    /// Pages of mappings that are locked, resident or not.
    pub locked: u64,
}

/// An address space.
pub struct Mm<'m, P: Platform> {
    pub(in crate::vm) memory: &'m Memory<'m, P>,
    body: BodyBox,
}

impl LockMode {
    /// The flags that a mapping gets.
    pub(in crate::vm) const fn flags(self) -> VmaFlags {
        match self {
            Self::None => VmaFlags::NONE,
            Self::Now => VmaFlags::LOCKED,
            Self::OnFault => VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT),
        }
    }
}

impl<'m, P: Platform> Mm<'m, P> {
    /// An empty address space.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn new(memory: &'m Memory<'m, P>, mode: PagingMode) -> Result<Self, MmError> {
        Self::taken_apart_by(memory, mode, ZapStrategy::default())
    }

    /// As [`Self::new`], taken apart in this way.
    pub(crate) fn taken_apart_by(
        memory: &'m Memory<'m, P>,
        mode: PagingMode,
        zap: ZapStrategy,
    ) -> Result<Self, MmError> {
        let made = Self::unknown(memory, mode, zap, None)?;
        made.join_family();
        Ok(made)
    }

    /// An empty address space that is in its family already by name, but that nobody finds there yet: of its own if none is
    /// named.
    pub(in crate::vm) fn unknown(
        memory: &'m Memory<'m, P>,
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

    /// What others may find of the address space.
    pub(in crate::vm) fn body(&self) -> &BodyBox {
        &self.body
    }

    /// The running CPU starts to run the address space. It runs no other.
    pub fn switch_in(&self) {
        self.context.switch_in(self.memory.platform());
    }

    /// The running CPU stops running the address space.
    pub fn switch_out(&self) {
        self.context.switch_out(self.memory.platform());
    }

    /// Its number: no other address space of the machine has it, or had it before.
    pub fn number(&self) -> u64 {
        self.mapper.number()
    }

    /// The top-level page table, for the machine's root register.
    pub fn root(&self) -> Frame {
        self.context.root()
    }

    /// Says how many bytes a mapping that grows down may reach (`RLIMIT_STACK`). No limit at first.
    pub fn set_stack_limit(&self, bytes: u64) {
        self.lock().stack_limit = bytes;
    }

    /// Says how many mappings it may have (`vm.max_map_count`); [`MAX_MAPPINGS`] at first, and in a child of `fork` what
    /// the parent has. As in Linux up to 6.18 a new mapping may be one more, and what cuts mappings may not.
    pub fn set_mapping_limit(&self, count: usize) {
        self.lock().mapping_limit = count;
    }

    /// Where mappings are placed.
    pub fn layout(&self) -> Layout {
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

    /// The same for an address space that nobody else knows yet, whatever the caller holds.
    pub(in crate::vm) fn lock_unknown(&self) -> SpaceGuard<'_, P> {
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

    /// Applies what a gather found. The page table does not know one kind of file from another; the caller does.
    pub(in crate::vm) fn add_rss(&self, change: RssChange, counted: Counted) {
        self.body.add_rss(self.memory.pages(), change, counted);
    }

    /// Splits large leaves that reach over an end of the range, and unshares tables that do, so that unmapping it needs no
    /// memory. A page cache
    /// that can be dropped is, before memory counts as out.
    pub(in crate::vm) fn cut(&self, range: VirtRange) -> Result<(), MmError> {
        for at in [range.start, range.end] {
            self.cut_at(at)?;
        }
        self.retried(|| self.tables().unshare_ends(range))
    }

    /// Splits leaves until none reaches across an address.
    pub(in crate::vm) fn cut_at(&self, at: VirtAddr) -> Result<(), MmError> {
        self.retried(|| self.tables().split_at(at))
    }

    /// As [`Self::cut`], save that huge pages, which are mapped whole, are left alone.
    pub(in crate::vm) fn cut_small(&self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        for at in [range.start, range.end].into_iter().filter(|&at| cuts(space, at).is_none()) {
            self.retried(|| self.tables().split_at(at))?;
        }
        self.retried(|| self.tables().unshare_ends(range))
    }

    /// Sees to it that no table which maps something in the range is shared with another address space.
    pub(in crate::vm) fn unshare(&self, range: VirtRange) -> Result<(), MmError> {
        self.retried(|| self.tables().unshare(range))
    }

    /// Tries something that may need memory once more after page cache was dropped.
    fn retried(&self, attempt: impl Fn() -> Result<(), MapError>) -> Result<(), MmError> {
        let mut done = attempt();
        if done == Err(MapError::OutOfMemory) && self.memory.reclaim() > 0 {
            done = attempt();
        }
        done.map_err(|_| MmError::NoMemory)
    }

    /// Takes out what `vmas`, in ascending order, map inside `within`. Nothing else is mapped in `limits`, which covers
    /// it: tables there go whole. The ends of `within` were [`Self::cut`]. The lock is held for writing.
    pub(in crate::vm) fn zap<'v>(
        &self,
        vmas: impl Iterator<Item = &'v Vma>,
        within: VirtRange,
        limits: VirtRange,
    ) {
        self.memory.forgo(self.mapper.number(), within);
        // Neighbours that count alike go in one gather.
        let mut open: Option<(VirtRange, Counted)> = None;
        let mut floor = limits.start;
        for vma in vmas {
            let (range, counted) = (vma.range.intersect(within), counted(vma));
            match &mut open {
                Some((sum, alike)) if *alike == counted => sum.end = range.end,
                _ => {
                    if let Some((sum, counted)) = open {
                        self.zap_alike(Zap::tables(sum, VirtRange::new(floor, sum.end)), within, counted);
                        floor = range.start;
                    }
                    open = Some((range, counted));
                }
            }
        }
        if let Some((sum, counted)) = open {
            self.zap_alike(Zap::tables(sum, VirtRange::new(floor, limits.end)), within, counted);
        }
    }

    fn zap_alike(&self, zap: Zap, within: VirtRange, counted: Counted) {
        let mut gather = MmuGather::new(self.memory.pages(), &self.context);
        // A shared table may reach over the ends of what counts alike; all that it maps is anonymous memory.
        self.tables().let_go(&zap, within, &mut gather);
        let zapped = self.tables().unmap(&zap, &mut gather);
        debug_assert_eq!(zapped, Ok(()), "the ends of {:?} were cut before", zap.range);
        self.add_rss(gather.finish(), counted);
        if counted == Counted::Huge {
            self.memory.huge().take_returned(self.memory.pages());
        }
    }

    /// Gives the leaves of a range, whose ends were [`Self::cut`], the rights of their mappings.
    pub(in crate::vm) fn protect_leaves(&self, space: &Space, range: VirtRange) {
        let mut owed = FlushBatch::new();
        for vma in space.tree.overlapping(range) {
            let grant = match (&vma.attributes.backing, vma.attributes.is_private()) {
                (_, true) => GrantWrite::Exclusive,
                (_, false) if counted(vma) != Counted::File => GrantWrite::Always,
                // The first store to a page of a file must be noticed.
                _ => GrantWrite::Never,
            };
            let part = vma.range.intersect(range);
            let done = self.tables().protect(part, vma.attributes.protection, grant, &mut owed);
            debug_assert_eq!(done, Ok(()), "the ends of {part:?} were cut before");
        }
        owed.flush(self.memory.pages(), &self.context);
    }

    /// Moves leaves to a range in which nothing is mapped. On an error nothing has moved.
    pub(in crate::vm) fn move_leaves(&self, from: VirtAddr, to: VirtAddr, len: u64) -> Result<(), MmError> {
        let mut owed = FlushBatch::new();
        let moved = self.tables().move_range(VirtRange::from_len(from, len), to, &mut owed);
        if let Err(error) = moved {
            let back = self.tables().move_range(VirtRange::from_len(to, error.moved), from, &mut owed);
            debug_assert!(back.is_ok(), "moving back needs no memory");
        }
        owed.flush(self.memory.pages(), &self.context);
        moved.map_err(|_| MmError::NoMemory)
    }
}

impl<P: Platform> Deref for Mm<'_, P> {
    type Target = MmBody;
    #[inline]
    fn deref(&self) -> &MmBody {
        &self.body
    }
}

impl<P: Platform> DerefMut for Mm<'_, P> {
    fn deref_mut(&mut self) -> &mut MmBody {
        &mut self.body
    }
}

/// The lock of an address space, held for writing.
pub(in crate::vm) struct SpaceGuard<'a, P: Platform> {
    space: WriteGuard<'a, Space, P>,
    body: &'a BodyBox,
    platform: &'a P,
}

impl<P: Platform> SpaceGuard<'_, P> {
    /// How often the lock was held for writing, this time counted.
    pub(in crate::vm) fn writes(&self) -> u32 {
        self.space.writes()
    }
}

impl<P: Platform> Deref for SpaceGuard<'_, P> {
    type Target = Space;
    #[inline]
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl<P: Platform> DerefMut for SpaceGuard<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

impl<P: Platform> Drop for SpaceGuard<'_, P> {
    fn drop(&mut self) {
        self.body.show_changed(self.platform, &mut self.space.tree);
    }
}

/// As what the mapping's pages count that are not private pages of small folios.
pub(in crate::vm) fn counted(vma: &Vma) -> Counted {
    match &vma.attributes.backing {
        Backing::File { file, .. } => file.node().kind().into(),
        Backing::Anonymous => Counted::File,
    }
}
