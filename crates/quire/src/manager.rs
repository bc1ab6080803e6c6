//! The whole memory manager: one value per machine.

use crate::addr::{Frame, FrameRange, Order, VirtAddr};
use crate::arch::PagingMode;
use crate::error::{HotplugError, InitError, MemoryFailureError, MmError, SplitError, TooManyHandlers};
#[cfg(feature = "published")]
use crate::hugetlb::DescriptorPolicy;
use crate::hugetlb::{HugeFailure, HugeFsError, HugeFsLimits, HugePools, HugeSize, PoolInfo};
use crate::page_alloc::{AllocatorConfig, PageAllocator, Violation};
use crate::platform::{FileId, Platform, check_start};
use crate::stats::Stat;
use crate::tlb::ZapStrategy;
use crate::vm::{
    Collapse, Collapser, File, FolioPolicy, ForkStrategy, GiganticClearing, HugeFs, MemoryFailure,
    MemoryLoss, Mm, MmShared, PageFlags, PageSurvey, Reclaim, ReverseMap, Scanned, SoftOffline, Splitter,
    Underused, UnderusedFolios, Userfault, UserfaultChanges,
};

mod moving;

pub use crate::meminfo::Meminfo;
pub use crate::page_alloc::MemoryRange;

/// Choices made when the manager takes over a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// Choices of the page allocator.
    pub allocator: AllocatorConfig,
    /// The folio sizes of anonymous memory, until [`MemoryManager::set_folio_policy`] changes them.
    pub folios: FolioPolicy,
    /// The number of page-table levels.
    pub paging: PagingMode,
    /// How `fork` gives the child its leaves.
    pub fork: ForkStrategy,
    /// How memory is unmapped.
    #[cfg(feature = "published")]
    pub zap: ZapStrategy,
    /// How the descriptors of pages in pools of huge pages are kept.
    #[cfg(feature = "published")]
    pub descriptors: DescriptorPolicy,
}

impl Config {
    fn zap(&self) -> ZapStrategy {
        #[cfg(feature = "published")]
        return self.zap;
        #[cfg(not(feature = "published"))]
        ZapStrategy::Tables
    }

    fn pools<'p, P: Platform>(&self, pages: &PageAllocator<'p, P>) -> Result<HugePools<'p>, InitError> {
        #[cfg(feature = "published")]
        return HugePools::with_policy(pages, self.descriptors);
        #[cfg(not(feature = "published"))]
        HugePools::new(pages)
    }
}

/// Manages the memory of one machine: frames, page cache, address spaces.
///
/// A method whose caller must hold no lock may sleep or wait for other CPUs. It is called as the methods of
/// [`Mm`] are: by a task with interrupts on, not pinned.
pub struct MemoryManager<'p, P: Platform> {
    memory: MmShared<'p, P>,
    paging: PagingMode,
    zap: ZapStrategy,
}

/// What happened to a frame that went bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It belonged to no pool of huge pages.
    Memory(MemoryFailure),
    /// It belonged to a pool of huge pages.
    Huge(HugeFailure),
}

impl<'p, P: Platform> MemoryManager<'p, P> {
    /// Takes over the memory in `ranges`, in ascending order. Takes well under a millisecond where ranges are
    /// zeroed, because records of untouched blocks are not written.
    ///
    /// Needs 8 KB of stack in release builds, the value of 1,240 bytes included, and 45 KB without
    /// optimisation. Verbs need 12 KB at most; without [`Mm::collapse`] 8 KB, and 20 KB without optimisation. The
    /// platform's own functions, the pager and interrupts come on top. `crates/quire/tests/stack` measures it.
    ///
    /// # Safety
    /// As for [`PageAllocator::new`]: the manager alone uses the memory in `ranges` from now on.
    ///
    /// # Errors
    /// [`InitError`]. A processor that is not set up ([`crate::arch::ProcessorState`]) and a stack that is too
    /// small, where the platform knows ([`InitError::SmallStack`]), are found before the memory is used.
    pub unsafe fn new(platform: &'p P, ranges: &[MemoryRange], config: &Config) -> Result<Self, InitError> {
        // SAFETY: invariant 1: the caller hands the memory over, and no more comes later.
        unsafe { Self::with_later(platform, ranges, &[], config) }
    }

    /// [`Self::new`] for a machine that may add the memory in `later`, in ascending order, after start-up
    /// ([`Self::add_memory`]), as [`PageAllocator::with_later`] does.
    ///
    /// # Safety
    /// As for [`PageAllocator::with_later`].
    ///
    /// # Errors
    /// As for [`Self::new`].
    #[inline(never)]
    pub unsafe fn with_later(
        platform: &'p P,
        ranges: &[MemoryRange],
        later: &[MemoryRange],
        config: &Config,
    ) -> Result<Self, InitError> {
        check_start(platform, config.paging)?;
        // SAFETY: invariant 1: the caller hands the memory over.
        unsafe { PageAllocator::with_later(platform, ranges, later, config.allocator) }
            .and_then(|pages| Self::with_pages(pages, config))
    }

    /// A function of its own: its values need no stack while the page allocator starts.
    #[inline(never)]
    fn with_pages(pages: PageAllocator<'p, P>, config: &Config) -> Result<Self, InitError> {
        let huge = config.pools(&pages)?;
        let memory = MmShared::with_huge(pages, config.folios, config.fork, huge)?;
        Ok(Self { memory, paging: config.paging, zap: config.zap() })
    }

    /// Creates an empty address space.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn new_mm(&self) -> Result<Mm<'_, P>, MmError> {
        Mm::taken_apart_by(&self.memory, self.paging, self.zap)
    }

    /// Opens a file of the machine's pager.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn open(&self, file: FileId) -> Result<File<'_, P>, MmError> {
        File::open(&self.memory, file)
    }

    /// Creates shared memory without a name, for several address spaces to map.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn shmem(&self, bytes: u64) -> Result<File<'_, P>, MmError> {
        File::shmem(&self.memory, bytes)
    }

    /// Creates a file system of huge pages of this size, within these limits (Linux: a mount of `hugetlbfs`).
    ///
    /// # Errors
    /// [`HugeFsError`].
    pub fn huge_fs(&self, size: HugeSize, limits: HugeFsLimits) -> Result<HugeFs<'_, P>, HugeFsError> {
        HugeFs::new(&self.memory, size, limits)
    }

    /// Creates a file of huge pages that belongs to no file system, of `bytes` rounded up to whole pages
    /// (Linux: `memfd_create` with `MFD_HUGETLB`).
    ///
    /// # Errors
    /// [`MmError::NoMemory`], [`MmError::Overflow`].
    pub fn huge_file(&self, size: HugeSize, bytes: u64) -> Result<File<'_, P>, MmError> {
        File::huge(&self.memory, size, 0, bytes)
    }

    /// Creates a fault handler. It will read the faults of the ranges registered with it, and these changes
    /// to their address spaces (Linux: `userfaultfd`).
    ///
    /// # Errors
    /// [`TooManyHandlers`].
    pub fn userfault(&self, changes: UserfaultChanges) -> Result<Userfault<'_, P>, TooManyHandlers> {
        Userfault::new(&self.memory, changes)
    }

    /// Sets the folio sizes of anonymous memory for later faults. Memory mapped already stays as it is.
    pub fn set_folio_policy(&self, policy: FolioPolicy) {
        self.memory.set_policy(policy);
    }

    /// The folio sizes of anonymous memory.
    pub fn folio_policy(&self) -> FolioPolicy {
        self.memory.policy()
    }

    /// The page allocator.
    pub fn pages(&self) -> &PageAllocator<'p, P> {
        self.memory.pages()
    }

    /// The pools of huge pages. Their methods take the page allocator ([`Self::pages`]) as well.
    pub fn huge_pools(&self) -> &HugePools<'p> {
        self.memory.huge()
    }

    /// Clears one piece of a gigantic folio that a task waits for or may touch later. Returns whether there
    /// was one. An idle CPU calls it until it returns `false`. The caller holds no lock.
    pub fn clear_ahead(&self) -> bool {
        GiganticClearing::of(self.memory.sleepable()).clear_ahead()
    }

    /// Scans some address spaces from where the last call stopped, and collapses small folios to folios of 2
    /// MiB where [`Collapser`] says. For an idle CPU or a task of its own; the result says after how many
    /// milliseconds to call again. The caller holds no lock.
    pub fn collapse_ahead(&self, collapser: &mut Collapser) -> Scanned {
        Collapse::of(self.memory.sleepable()).collapse_ahead(collapser)
    }

    /// Visits up to `folios` folios of 2 MiB from where the last call stopped, splits those that are mostly
    /// zero, and frees the zero pages. For a task that finds memory short. The caller holds no lock.
    pub fn split_underused(&self, splitter: &mut Splitter, folios: u64) -> Underused {
        UnderusedFolios::of(self.memory.sleepable()).split_underused(splitter, folios)
    }

    /// Lets [`Self::reclaim`], and every task that runs out of memory, split folios of 2 MiB that have more
    /// zero pages than this, as a last resort. The initial limit is Linux's default of 511: none is split.
    pub fn set_underused_limit(&self, max_ptes_none: usize) {
        UnderusedFolios::of(&self.memory).set_underused_limit(max_ptes_none);
    }

    /// Clears some free memory ahead of its use, that of the pools of huge pages first, as much as
    /// [`Zeroes`](crate::page_alloc::Zeroes) asks for. Returns whether there was anything to do. For idle CPUs,
    /// after [`Self::clear_ahead`], for which a task may wait. The caller holds no lock.
    pub fn zero_ahead(&self) -> bool {
        self.memory.huge().clear_ahead(self.pages()) || self.pages().store().zero_ahead()
    }

    /// How often an event happened on all CPUs. The names are those of `/proc/vmstat`.
    pub fn stat(&self, stat: Stat) -> u64 {
        self.memory.pages().lists().stat(stat)
    }

    /// How much memory there is of each kind.
    pub fn meminfo(&self) -> Meminfo {
        Meminfo {
            frames: self.memory.pages().memory_info(),
            cached: self.memory.files().paged_frames(),
            shmem: self.memory.files().shmem_frames(),
            anon: self.stat(Stat::NrAnonPages),
            mapped: self.stat(Stat::NrMapped),
            page_tables: self.stat(Stat::NrPageTablePages),
            slab: self.stat(Stat::NrSlab),
            bad: self.stat(Stat::NrHardwareCorrupted),
        }
    }

    /// Pages of anonymous folios that a leaf of 2 MiB or more maps, each counted once (`AnonHugePages`). Reads
    /// the record of every block. The caller holds no lock.
    pub fn anon_huge(&self) -> u64 {
        PageSurvey::of(self.memory.sleepable()).anon_in_large_leaves()
    }

    /// The lines of `/proc/meminfo` about huge pages: name and number. The first four count pages of the
    /// default size; the last is the memory of all pools in KiB.
    pub fn huge_lines(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let pool = |size| self.memory.huge().info(self.memory.pages(), size);
        let PoolInfo { total, free, reserved, surplus } = pool(self.huge_pools().default_size());
        let all: u64 = HugeSize::ALL.iter().map(|&size| pool(size).total * size.bytes()).sum();
        [
            ("HugePages_Total", total),
            ("HugePages_Free", free),
            ("HugePages_Rsvd", reserved),
            ("HugePages_Surp", surplus),
            ("Hugetlb", all / 1024),
        ]
        .into_iter()
    }

    /// The lines of `/proc/vmstat` that apply: name and value, amounts in 4 KiB pages.
    pub fn vmstat(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let info = self.meminfo();
        let zeroed = self.memory.pages().zone_info().map(|zone| zone.zeroed).sum();
        let amounts = [
            ("nr_free_pages", info.frames.free + info.frames.cached),
            ("nr_zeroed_pages", zeroed),
            ("nr_file_pages", info.cached + info.shmem),
            ("nr_shmem", info.shmem),
            ("nr_memmap", info.frames.metadata),
        ];
        amounts.into_iter().chain(Stat::ALL.iter().map(|&stat| (stat.name(), self.stat(stat))))
    }

    /// Reclaims some memory, the cheapest first: unmapped page cache, unmapped frames of large folios, mapped
    /// page cache. Returns how many frames became free. The caller holds no lock.
    pub fn reclaim(&self) -> u64 {
        Reclaim::of(self.memory.sleepable()).reclaim_all()
    }

    /// Calls `show` with root and address of each mapping of an anonymous frame. The caller holds no lock.
    pub fn mappings(&self, frame: Frame, show: impl FnMut(Frame, VirtAddr)) {
        ReverseMap::of(self.memory.sleepable()).mappings(frame, show);
    }

    /// Calls `show` with runs of these frames, in ascending order, and the number of address spaces that map
    /// each frame, as `/proc/kpagecount` says. Exact while none of them is mapped or unmapped. Frames that
    /// are not memory count as zero. The caller holds no lock.
    pub fn kpagecount(&self, frames: FrameRange, show: impl FnMut(FrameRange, u64)) {
        PageSurvey::of(self.memory.sleepable()).page_counts(frames, show);
    }

    /// Calls `show` with runs of these frames, in ascending order, and their use as `/proc/kpageflags` says
    /// ([`PageFlags`]). The caller holds no lock.
    pub fn kpageflags(&self, frames: FrameRange, show: impl FnMut(FrameRange, PageFlags)) {
        PageSurvey::of(self.memory.sleepable()).page_flags(frames, show);
    }

    /// How many address spaces map the folio in use around a frame, or a part of it, if there is one.
    /// [`folio_maps`](crate::page_alloc::MapCounts::folio_maps) counts the leaves that map it,
    /// [`Mm::maps_exclusively`](crate::vm::Mm::maps_exclusively) answers for one address space. The caller
    /// holds no lock.
    pub fn folio_spaces(&self, frame: Frame) -> Option<u64> {
        PageSurvey::of(self.memory.sleepable()).folio_spaces(frame)
    }

    /// Splits the mapped anonymous folio that starts at `frame` into folios of order `to`, after the large
    /// leaves that map it. Returns how many frames became free. The caller holds no lock.
    ///
    /// # Errors
    /// [`SplitError`]; the folio is as before then, but leaves may have been split.
    pub fn split_folio(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        ReverseMap::of(self.memory.sleepable()).split_folio(frame, to)
    }

    /// Takes a bad frame out of use; its contents are lost ([`MemoryFailure`]), or for a page of a pool as
    /// [`HugePools::memory_failure`] says. The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MemoryFailureError`]; nothing has changed then, but after [`MemoryFailureError::OutOfMemory`] some
    /// leaves may be gone, and a frame of a huge page is marked: no fault maps it.
    pub fn memory_failure(&self, frame: Frame) -> Result<Failed, MemoryFailureError> {
        Ok(match MemoryLoss::of(self.memory.sleepable()).memory_failure(frame)? {
            MemoryFailure::Huge => Failed::Huge(self.huge_pools().memory_failure(self.pages(), frame)),
            other => Failed::Memory(other),
        })
    }

    /// Moves what is in a frame elsewhere, and takes the frame out of use before it goes bad (Linux: soft
    /// offline). The caller holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MemoryFailureError`]; the frame is in use as before then.
    pub fn soft_offline(&self, frame: Frame) -> Result<(), MemoryFailureError> {
        SoftOffline::of(self.memory.sleepable()).soft_offline(frame)
    }

    /// Adds memory as [`PageAllocator::add_memory`] does.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn add_memory(&self, range: FrameRange, zeroed: bool) -> Result<(), HotplugError> {
        // SAFETY: invariant 1: the caller hands the memory over.
        unsafe { self.pages().add_memory(range, zeroed) }
    }

    /// Checks all invariants that hold between operations, except those of address spaces ([`Mm::validate`]).
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn validate(&self) -> Result<(), Violation> {
        self.memory.pages().validate()
    }
}
