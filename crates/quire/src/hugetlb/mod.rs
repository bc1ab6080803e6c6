//! Pools of huge pages (Linux: hugetlb): pages of 2 MiB and 1 GiB that are set aside, counted and reserved.
//!
//! A pool is the huge pages of one size; each belongs to a node and is free or in use. Those that the administrator asked
//! for are *persistent*; those beyond are *surplus*: taken while there were not enough, up to a limit, or left over when
//! the pool was to be smaller than what was in use; they leave the pool when they become free. A *reservation* reservations a
//! page that is not chosen yet, so that a mapping cannot run short later.
//!
//! # What a huge page costs
//!
//! Nothing but its block's record (256 bytes for 2 MiB). There are no page descriptors to free when a page joins a pool,
//! and none to bring back when it leaves: a block has some only while it is used in small pieces, and they stand in the
//! block itself ([`crate::memmap`]). So a resize changes no mapping, needs no flush, and a pool can shrink when there is no
//! free memory at all. In the words of Linux, `hugetlb_optimize_vmemmap` is always on and costs nothing.
//!
//! The feature `published` brings three other policies, over a window of descriptors (`vmemmap`), to be compared against.
//!
//! # Protocol
//!
//! Each pool has one lock, under which only numbers and links change: pages are taken from the page allocator before, and
//! given back to it after, [`HUGE_BATCH`](crate::limits::HUGE_BATCH) at a time. What several CPUs are about to add is
//! counted as *claimed*, so that they can grow one pool together without passing its size.
//!
//! The pool *holds* its pages, so that no count that falls to zero frees one. Free ones are linked through their records,
//! the one freed last first, which is the one that is warm.
//!
//! Source: the semantics of `mm/hugetlb.c` and `Documentation/admin-guide/mm/hugetlbpage.rst`.

mod account;
mod control;
mod demote;
mod descriptors;
mod failure;
mod file;
mod fs;
mod group;
mod pool;
mod resize;
mod take;

#[cfg(feature = "published")]
pub use crate::vmemmap::DescriptorPolicy;
pub use account::Account;
pub use control::{ControlError, Outcome};
pub use demote::Demoted;
pub use failure::HugeFailure;
pub(crate) use file::{Claim, object_of};
pub use fs::{HugeFsError, HugeFsInfo, HugeFsLimits};
pub use group::{Charge, GroupCounters, HugeGroup, LimitReached, TooManyGroups};
pub use pool::{PoolInfo, PoolViolation};
pub use resize::{Resized, Stopped};

use core::sync::atomic::AtomicBool;

use crate::addr::{Order, PageSize};
use crate::limits::{HUGE_FAULTS, MAX_HUGE_FS};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};
#[cfg(feature = "published")]
use descriptors::Descriptors;
use fs::Fs;
use group::Groups;
use pool::Pool;

/// The sizes of huge pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HugeSize {
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl HugeSize {
    /// Every size, the smaller one first.
    pub const ALL: [Self; 2] = [Self::Size2M, Self::Size1G];

    /// The order of a folio of this size.
    #[inline]
    pub const fn order(self) -> Order {
        match self {
            Self::Size2M => Order::BLOCK,
            Self::Size1G => Order::GIGANTIC,
        }
    }

    /// The size of folios of this order.
    #[inline]
    pub const fn of_order(order: Order) -> Option<Self> {
        match order {
            Order::BLOCK => Some(Self::Size2M),
            Order::GIGANTIC => Some(Self::Size1G),
            _ => None,
        }
    }

    /// The leaf that maps one.
    #[inline]
    pub const fn leaf(self) -> PageSize {
        match self {
            Self::Size2M => PageSize::Size2M,
            Self::Size1G => PageSize::Size1G,
        }
    }

    /// Bytes of a page.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.leaf().bytes()
    }
}

/// The pools of a machine, one for each size.
pub struct HugePools {
    #[cfg(feature = "published")]
    descriptors: Descriptors,
    large: SpinLock<Pool>,
    gigantic: SpinLock<Pool>,
    groups: Groups,
    fs: SpinLock<[Fs; MAX_HUGE_FS]>,
    /// Which pages are being filled in, by their hash.
    faults: [AtomicBool; HUGE_FAULTS],
    /// Whether somebody takes in pages that leaves have let go.
    returning: AtomicBool,
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

    fn lock<'a, P: Platform>(
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
