//! What all address spaces of a machine share: frames, files, the memory of records, the folio policy.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::Frame;
use crate::error::InitError;
use crate::filemap::FileTable;
use crate::hugetlb::HugePools;
use crate::limits::RECLAIM_FRAMES;
use crate::page_alloc::{Folio, Gfp, Origin, PageAllocator, TableFrames};
use crate::platform::Platform;
use crate::rank::Rank;
use crate::slab::Cache;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};
use crate::vm::collapse::WhenShort;
use crate::vm::gigantic::state::GiganticClears;
use crate::vm::mapping::policy::FolioPolicy;
use crate::vm::space::body::MmBody;
use crate::vm::space::family::Families;
use crate::vm::space::hooks::Hooks;
use crate::vm::tree::VmaRecord;
use crate::vm::userfault::Contexts;

/// How `fork` gives the child the leaves of private mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForkStrategy {
    /// It copies every leaf.
    #[default]
    Copy,
    /// It shares tables of anonymous memory until either side changes them, and copies other leaves.
    Share,
}

/// What all address spaces of a machine share.
pub struct MmShared<'p, P: Platform> {
    pub(super) pages: PageAllocator<'p, P>,
    pub(super) files: FileTable,
    pub(super) vmas: Cache<VmaRecord>,
    pub(super) bodies: Cache<MmBody>,
    families: SpinLock<Families>,
    /// The number of the newest address space.
    number: AtomicU64,
    policy: AtomicU64,
    zero: Frame,
    fork: ForkStrategy,
    gigantic_clears: GiganticClears,
    when_short: WhenShort,
    huge: HugePools<'p>,
    userfaults: Contexts,
    hooks: Hooks<P>,
}

impl<'p, P: Platform> MmShared<'p, P> {
    /// Takes an allocator that holds the machine's frames, and allocates the zero page from it.
    ///
    /// # Errors
    /// [`InitError::TooSmall`].
    pub fn new(
        pages: PageAllocator<'p, P>,
        policy: FolioPolicy,
        fork: ForkStrategy,
    ) -> Result<Self, InitError> {
        let huge = HugePools::new(&pages)?;
        Self::with_huge(pages, policy, fork, huge)
    }

    /// As [`Self::new`], with these pools of huge pages, which are empty.
    ///
    /// # Errors
    /// [`InitError::TooSmall`].
    #[inline(never)]
    pub fn with_huge(
        pages: PageAllocator<'p, P>,
        policy: FolioPolicy,
        fork: ForkStrategy,
        huge: HugePools<'p>,
    ) -> Result<Self, InitError> {
        let zero = pages.requests().alloc_zero_page(Gfp::KERNEL).map_err(|_| InitError::TooSmall)?;
        pages.requests().hold_for_manager(zero.frames()).map_err(|_| InitError::TooSmall)?;
        let tables = &mut TableFrames::new(&pages);
        let files = FileTable::new(tables)?;
        let userfaults = Contexts::new(tables)?;
        let gigantic_clears = GiganticClears::new(tables)?;
        let policy = AtomicU64::new(policy.to_bits());
        Ok(Self {
            pages,
            files,
            vmas: Cache::new(),
            bodies: Cache::new(),
            families: SpinLock::new(Rank::Families, Families::new()),
            number: AtomicU64::new(0),
            policy,
            zero: zero.into_raw(),
            fork,
            gigantic_clears,
            when_short: WhenShort::new(),
            huge,
            userfaults,
            hooks: Hooks::new(),
        })
    }

    pub(in crate::vm) fn when_short(&self) -> &WhenShort {
        &self.when_short
    }

    #[inline]
    pub(in crate::vm) fn gigantic_clears(&self) -> &GiganticClears {
        &self.gigantic_clears
    }

    #[inline]
    pub(in crate::vm) fn userfaults(&self) -> &Contexts {
        &self.userfaults
    }

    #[inline]
    pub(in crate::vm) fn hooks(&self) -> &Hooks<P> {
        &self.hooks
    }

    /// The platform.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.pages.platform()
    }

    /// The same, for a call that may sleep or wait for other CPUs. Debug builds refuse callers that must not.
    #[inline(always)]
    pub(crate) fn sleepable(&self) -> &Self {
        if cfg!(debug_assertions) {
            self.platform().might_sleep();
        }
        self
    }

    /// The page allocator.
    #[inline]
    pub fn pages(&self) -> &PageAllocator<'p, P> {
        &self.pages
    }

    /// The files.
    #[inline]
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// The pools of huge pages.
    #[inline]
    pub fn huge(&self) -> &HugePools<'p> {
        &self.huge
    }

    /// The frame of zeroes that reads of untouched memory see.
    #[inline]
    pub fn zero_frame(&self) -> Frame {
        self.zero
    }

    /// How `fork` gives the child its leaves.
    #[inline]
    pub fn fork_strategy(&self) -> ForkStrategy {
        self.fork
    }

    /// The folio sizes of anonymous memory.
    #[inline]
    pub fn policy(&self) -> FolioPolicy {
        FolioPolicy::from_bits(self.policy.load(Ordering::Relaxed))
    }

    /// Chooses the folio sizes of anonymous memory from now on.
    pub fn set_policy(&self, policy: FolioPolicy) {
        self.policy.store(policy.to_bits(), Ordering::Relaxed);
    }

    /// Drops clean page cache that is not mapped, and returns how many frames became free. The caller may
    /// hold locks of address spaces.
    pub fn reclaim(&self) -> u64 {
        let freed = self.files.reclaim(&self.pages, RECLAIM_FRAMES);
        self.pages.count(Stat::PgstealFile, freed);
        freed
    }

    /// Frees a folio that was just allocated and is not needed.
    pub(in crate::vm) fn give_up(&self, folio: Folio) {
        let freed = self.pages.free(folio);
        debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
    }

    /// As [`Self::give_up`], for a folio that is still zero.
    pub(in crate::vm) fn give_up_zeroed(&self, folio: Folio) {
        let freed = self.pages.requests().free_zeroed(folio);
        debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
    }

    pub(in crate::vm) fn families(&self) -> SpinGuard<'_, Families, P> {
        self.families.lock(self.platform())
    }

    /// A number for a new address space: larger than all before, and usable as that of a family.
    pub(in crate::vm) fn next_number(&self) -> u64 {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        if Origin::kept(number) == Origin::NO_FAMILY { self.next_number() } else { number }
    }
}
