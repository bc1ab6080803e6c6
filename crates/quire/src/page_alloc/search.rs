//! Where to look for a folio: own shard, whole blocks, other shards, other mobility groups.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::gfp::Mobility;
use super::zone::Zone;
use crate::addr::{BlockNumber, Order};
use crate::limits::DESCRIPTOR_FRAMES;
use crate::memmap::{FrameMask, FrameState};
use crate::platform::Platform;
use crate::stats::Stat;

/// How a search for folios goes about it.
#[derive(Clone, Copy)]
pub(super) struct Search {
    pub(super) mobility: Mobility,
    pub(super) order: Order,
    /// The shard to start at.
    pub(super) home: usize,
    /// Whether locks may be waited for.
    pub(super) wait: bool,
    /// Whether the folios go onto a list first.
    pub(super) listed: bool,
}

impl Search {
    /// The state of the folios that are found.
    #[inline]
    pub(super) fn state(&self) -> FrameState {
        if self.listed { FrameState::FREE } else { FrameState::in_use(self.order) }
    }
}

impl<P: Platform> PageAllocator<'_, P> {
    /// A block that should have a free group of the order, splitting a whole one if need be.
    pub(super) fn find_block(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        let own = |shard: usize, mobility| {
            let shard = &zone.shards[shard].0;
            let index =
                if search.wait { shard.lock(self.platform) } else { shard.try_lock(self.platform)? };
            index.candidate(mobility, search.order).or_else(|| index.spare())
        };
        let others = || (1..zone.shards.len()).map(|step| (search.home + step) % zone.shards.len());
        own(search.home, search.mobility)
            .or_else(|| self.split_whole(zone, search))
            .or_else(|| others().find_map(|shard| own(shard, search.mobility)))
            .or_else(|| {
                let groups = Mobility::ALL.into_iter().filter(|&group| group != search.mobility);
                groups
                    .flat_map(|group| core::iter::once(search.home).chain(others()).map(move |s| (s, group)))
                    .find_map(|(shard, group)| {
                        let found = own(shard, group)?;
                        self.count(Stat::MobilityFallback, 1);
                        Some(found)
                    })
            })
    }

    /// Makes a whole block of the pool ready for small pieces, as a member of the searcher's shard.
    fn split_whole(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        let number = zone.take_blocks(self.platform, 1, search.wait)?;
        let block = self.memmap.block(number);
        block.lock(self.platform);
        self.make_small(zone, number, block, 0, FrameMask::EMPTY);
        block.shard.store(search.home as u16, Ordering::Relaxed);
        block.set_group(zone.number, search.mobility as u8);
        self.relist(zone, number, block);
        block.unlock(self.platform);
        zone.add_free(-(DESCRIPTOR_FRAMES as i64));
        self.count(Stat::BlockSplit, 1);
        Some(number)
    }
}
