//! What a list has parked: a chain of full magazines behind a small lock.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// Full magazines of one kind, the one that came last first.
pub(in crate::page_alloc) struct Parked {
    /// Magazines. Changes under the lock, which need not be taken when there are none.
    pub(in crate::page_alloc) count: AtomicU32,
    pub(in crate::page_alloc) chain: SpinLock<Chain>,
}

/// The chain of a list's parked magazines.
pub(in crate::page_alloc) struct Chain {
    /// The folio that the first magazine stands in, plus one.
    pub(in crate::page_alloc) top: u64,
    /// Magazines that may be parked. A list's grows when the store was asked for what was given back to it a moment ago, and
    /// shrinks with time ([`PageAllocator::age_lists`](crate::page_alloc::PageAllocator::age_lists)).
    pub(in crate::page_alloc) high: u32,
    /// Magazines for which there is room in the zone: as many as were parked at a time.
    pub(in crate::page_alloc) booked: u32,
}

impl Parked {
    /// What a list has parked: nothing, and nothing yet may be.
    pub(in crate::page_alloc) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            chain: SpinLock::new(Rank::Parked, Chain { top: 0, high: 0, booked: 0 }),
        }
    }

    /// How many magazines there are. Without the lock, a hint.
    #[inline]
    pub(in crate::page_alloc) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(in crate::page_alloc) fn lock<'a, P: FramePlatform>(
        &'a self,
        platform: &'a P,
        wait: bool,
    ) -> Option<SpinGuard<'a, Chain, P>> {
        if wait { Some(self.chain.lock(platform)) } else { self.chain.try_lock(platform) }
    }
}
