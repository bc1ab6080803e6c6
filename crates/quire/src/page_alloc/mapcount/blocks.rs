//! Folios of one block that lie in a row and were freed together: they go to their pool together.
#![forbid(unsafe_code)]

use crate::addr::{BlockNumber, FrameRange, Order};
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

/// Unused blocks in a row of one zone, all or none of them known to be zero, that no other code touches.
#[derive(Clone, Copy)]
pub(super) struct FreedBlocks {
    first: BlockNumber,
    count: u32,
    zone: usize,
    zeroed: bool,
}

impl FreedBlocks {
    pub(super) const NONE: Self = Self { first: BlockNumber(0), count: 0, zone: 0, zeroed: false };

    pub(super) fn one(first: BlockNumber, zone: usize, zeroed: bool) -> Self {
        Self { first, count: 1, zone, zeroed }
    }

    /// Frees a folio of one block, together with those before it in memory. No lock is held.
    pub(super) fn add<P: FramePlatform>(&mut self, counts: &MapCounts<'_, P>, one: Self) {
        counts.frames().note_freed(FrameRange::folio(one.first.first_frame(), Order::BLOCK));
        let follows = self.count > 0 && self.first.add(self.count) == one.first;
        if follows && (self.zone, self.zeroed) == (one.zone, one.zeroed) {
            self.count += 1;
        } else {
            self.put(counts);
            *self = one;
        }
    }

    /// Gives the blocks to their pool. No lock is held.
    #[inline]
    pub(super) fn put<P: FramePlatform>(&mut self, counts: &MapCounts<'_, P>) {
        let Self { first, count, zone, zeroed } = core::mem::replace(self, Self::NONE);
        if count > 0 {
            let store = counts.store();
            store.put_run(&store.zones[zone], first, count, zeroed);
        }
    }
}
