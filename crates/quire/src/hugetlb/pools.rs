//! The pools of a machine, one for each size.
#![forbid(unsafe_code)]

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicI32};

#[cfg(feature = "published")]
use super::descriptors::Descriptors;
use super::fs::Fs;
use super::group::Groups;
use super::pool::Pool;
use super::size::HugeSize;
use crate::error::InitError;
use crate::limits::{HUGE_FAULTS, MAX_HUGE_FS};
use crate::memmap::BootTable;
use crate::page_alloc::{PageAllocator, TableFrames};
use crate::platform::{FramePlatform, Platform};
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};

/// The pools of a machine, one for each size. Their tables stand in frames of the page allocator.
pub struct HugePools<'p> {
    #[cfg(feature = "published")]
    pub(super) descriptors: Descriptors,
    pub(super) large: SpinLock<Pool>,
    pub(super) gigantic: SpinLock<Pool>,
    pub(super) groups: Groups,
    /// The claim of the task that makes a group.
    pub(super) making: AtomicBool,
    pub(super) default_is_gigantic: AtomicBool,
    pub(super) shm_group: AtomicI32,
    pub(super) fs: SpinLock<BootTable<Fs>>,
    /// Claims of places, by their hash.
    pub(super) faults: [AtomicBool; HUGE_FAULTS],
    /// The claim of the task that takes back lent pages.
    pub(super) returning: AtomicBool,
    /// The tables live as long as the platform.
    pub(super) platform: PhantomData<&'p ()>,
}

impl<'p> HugePools<'p> {
    /// Empty pools whose pages have their descriptors in the block. Takes 3 frames, which are never freed.
    ///
    /// # Errors
    /// [`InitError::TooSmall`]: the frames are not there.
    #[inline(never)]
    pub fn new<P: FramePlatform>(pages: &PageAllocator<'p, P>) -> Result<Self, InitError> {
        let tables = &mut TableFrames::new(pages);
        let groups = Groups::new(tables)?;
        let fs = tables.table(MAX_HUGE_FS, |_, _| Ok(Fs::NONE))?;
        Ok(Self {
            #[cfg(feature = "published")]
            descriptors: Descriptors::new(),
            large: SpinLock::new(Rank::HugePool, Pool::new(tables, HugeSize::Size2M)?),
            gigantic: SpinLock::new(Rank::HugePool, Pool::new(tables, HugeSize::Size1G)?),
            groups,
            making: AtomicBool::new(false),
            default_is_gigantic: AtomicBool::new(false),
            shm_group: AtomicI32::new(0),
            fs: SpinLock::new(Rank::HugeFs, fs),
            faults: [const { AtomicBool::new(false) }; HUGE_FAULTS],
            returning: AtomicBool::new(false),
            platform: PhantomData,
        })
    }
}

impl HugePools<'_> {
    pub(super) fn lock<'a, P: Platform>(
        &'a self,
        pages: &'a PageAllocator<'_, P>,
        size: HugeSize,
    ) -> SpinGuard<'a, Pool, P> {
        let pool = match size {
            HugeSize::Size2M => &self.large,
            HugeSize::Size1G => &self.gigantic,
        };
        pages.count(Stat::HugetlbLock, 1);
        pool.lock(pages.platform())
    }
}
