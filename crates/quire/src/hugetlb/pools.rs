//! The pools of a machine, one for each size.
#![forbid(unsafe_code)]

use core::sync::atomic::AtomicBool;

#[cfg(feature = "published")]
use super::descriptors::Descriptors;
use super::fs::Fs;
use super::group::Groups;
use super::pool::Pool;
use super::size::HugeSize;
use crate::limits::{HUGE_FAULTS, MAX_HUGE_FS};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};

/// The pools of a machine, one for each size.
pub struct HugePools {
    #[cfg(feature = "published")]
    pub(super) descriptors: Descriptors,
    pub(super) large: SpinLock<Pool>,
    pub(super) gigantic: SpinLock<Pool>,
    pub(super) groups: Groups,
    pub(super) fs: SpinLock<[Fs; MAX_HUGE_FS]>,
    /// Claims of places, by their hash.
    pub(super) faults: [AtomicBool; HUGE_FAULTS],
    /// The claim of the task that takes back lent pages.
    pub(super) returning: AtomicBool,
}

impl Default for HugePools {
    fn default() -> Self {
        Self::new()
    }
}

impl HugePools {
    /// Empty pools whose pages have their descriptors in the block.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            #[cfg(feature = "published")]
            descriptors: Descriptors::new(),
            large: SpinLock::new(Rank::HugePool, Pool::new()),
            gigantic: SpinLock::new(Rank::HugePool, Pool::new()),
            groups: Groups::new(),
            fs: SpinLock::new(Rank::HugeFs, [Fs::NONE; MAX_HUGE_FS]),
            faults: [const { AtomicBool::new(false) }; HUGE_FAULTS],
            returning: AtomicBool::new(false),
        }
    }

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
