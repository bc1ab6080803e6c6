//! Where to look for a folio: own shard, whole blocks, other shards, other mobility groups.
//!
//! # Groups
//!
//! A block serves one mobility group, so that unmovable memory stays in few blocks. In order, a request takes
//!
//! 1. from a block of its group in its CPU's own shard, the one with the smallest sufficient free group, so
//!    that emptier blocks become whole;
//! 2. a whole block, unless those are short;
//! 3. from a block of its group in another shard;
//! 4. one of the last whole blocks;
//! 5. from a block of another group, the one with the *largest* free group, so that later requests find
//!    memory there too; [`Mobility::fallbacks`] decides among equals. If at least half of the block is free,
//!    it changes over to the requester's group, so that strangers stay together (Linux:
//!    `try_to_claim_block`).
//!
//! After the first step, unmovable and reclaimable requests have an order of their own (`store/steer.rs`), which
//! keeps them in few areas of 1 GiB.
//!
//! Without grouping a block serves every request.

use core::cmp::Reverse;
use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Order};
use crate::cpu::CpuId;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, FrameMask, FrameState};
use crate::page_alloc::request::gfp::{Contents, Gfp, Mobility};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::shard::ShardIndex;
use crate::page_alloc::store::zone::{SplitFrom, Zone};
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};

/// A search for folios.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct Search {
    pub(in crate::page_alloc) mobility: Mobility,
    pub(in crate::page_alloc) order: Order,
    /// The shard where it starts.
    pub(in crate::page_alloc) home: usize,
    /// Whether locks may be waited for.
    pub(in crate::page_alloc) wait: bool,
    /// Whether the folios go onto a list.
    pub(in crate::page_alloc) listed: bool,
    /// The preferred contents.
    pub(in crate::page_alloc) contents: Contents,
}

impl Search {
    /// The search for a request on a CPU, which may `wait` for locks or not.
    pub(in crate::page_alloc) fn new(zone: &Zone, cpu: CpuId, gfp: Gfp, order: Order, wait: bool) -> Self {
        let home = cpu.index() % zone.shards.len();
        Self { mobility: gfp.mobility, order, home, wait, listed: false, contents: gfp.contents }
    }

    /// A search within one locked block.
    #[inline]
    pub(in crate::page_alloc) fn within(order: Order) -> Self {
        let (mobility, contents) = (Mobility::Movable, Contents::Unknown);
        Self { mobility, order, home: 0, wait: true, listed: false, contents }
    }

    /// The state that found folios get.
    #[inline]
    pub(in crate::page_alloc) fn state(&self) -> FrameState {
        if self.listed { FrameState::FREE } else { FrameState::in_use(self.order) }
    }

    /// Whether a found folio's state says that it is known to be zero: on lists, and for requests that ask.
    #[inline]
    pub(in crate::page_alloc) fn keeps_mark(&self) -> bool {
        self.listed || self.contents == Contents::Zeroed
    }
}

impl<P: FramePlatform> Store<'_, P> {
    /// A block that should have a free group of the order; splits a whole one if need be.
    pub(in crate::page_alloc) fn find_block(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        if !self.group_by_mobility {
            return self.find_ungrouped(zone, search);
        }
        let own = self.find_in_group(zone, search.home, search);
        if search.mobility != Mobility::Movable {
            return own.or_else(|| self.find_immovable(zone, search));
        }
        own.or_else(|| self.split_whole(zone, search, true, SplitFrom::All))
            .or_else(|| other_shards(zone, search).find_map(|shard| self.find_in_group(zone, shard, search)))
            .or_else(|| self.split_whole(zone, search, false, SplitFrom::All))
            .or_else(|| self.find_in_groups(zone, search, &search.mobility.fallbacks()))
    }

    /// A block of the searcher's group in a shard, or the shard's spare. For frames that cannot move, the spare
    /// only if its area is tainted.
    pub(in crate::page_alloc) fn find_in_group(
        &self,
        zone: &Zone,
        shard: usize,
        search: Search,
    ) -> Option<BlockNumber> {
        self.look(zone, shard, search, |index| {
            let found = index.smallest(search.mobility, search.order).map(|(_, found)| found);
            // A spare elsewhere would taint another area.
            let serves =
                |&spare: &BlockNumber| search.mobility == Mobility::Movable || zone.areas.has_taint(spare);
            found.or_else(|| self.free_spare(zone, shard, search.order).filter(serves))
        })
    }

    /// As [`Self::find_block`], in blocks of any group.
    fn find_ungrouped(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        let any = |shard: usize| {
            self.look(zone, shard, search, |index| {
                let fitting =
                    Mobility::ALL.into_iter().filter_map(|group| index.smallest(group, search.order));
                fitting.min().map(|(_, found)| found).or_else(|| self.free_spare(zone, shard, search.order))
            })
        };
        any(search.home)
            .or_else(|| self.split_whole(zone, search, false, SplitFrom::All))
            .or_else(|| other_shards(zone, search).find_map(any))
    }

    /// The spare of the searcher's shard if it is entirely free, whatever its area.
    pub(in crate::page_alloc) fn own_spare(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        self.look(zone, search.home, search, |_| self.free_spare(zone, search.home, search.order))
    }

    /// A shard's spare if it is entirely free: it serves any group, but no order for which its tables leave
    /// no room.
    fn free_spare(&self, zone: &Zone, shard: usize, order: Order) -> Option<BlockNumber> {
        let serves = |spare: &BlockNumber| {
            let block = self.frames.memmap.block(*spare);
            block.is_entirely_free() && block.free_order.load(Ordering::Relaxed) > order.get()
        };
        zone.shards[shard].spare().filter(serves)
    }

    /// Reads the index of one shard, unless it is locked and the search may not wait.
    fn look<R>(
        &self,
        zone: &Zone,
        shard: usize,
        search: Search,
        at: impl FnOnce(&ShardIndex) -> Option<R>,
    ) -> Option<R> {
        let shard = &zone.shards[shard].0;
        let index = if search.wait {
            shard.lock(self.frames.platform)
        } else {
            shard.try_lock(self.frames.platform)?
        };
        at(&index)
    }

    /// The emptiest block of these groups; changes it over to the searcher's group if enough of it is free.
    #[cold]
    pub(in crate::page_alloc) fn find_in_groups(
        &self,
        zone: &Zone,
        search: Search,
        groups: &[Mobility],
    ) -> Option<BlockNumber> {
        let best_of = |shard: usize| {
            self.look(zone, shard, search, |index| {
                let largest = groups.iter().enumerate().filter_map(|(rank, &group)| {
                    let (order, block) =
                        index.largest(group).filter(|&(order, _)| order >= search.order.get())?;
                    Some((order, Reverse(rank), block))
                });
                largest.max()
            })
        };
        let shards = core::iter::once(search.home).chain(other_shards(zone, search));
        let (_, _, number) = shards.filter_map(best_of).max_by_key(|&(order, rank, _)| (order, rank))?;
        self.frames.count(Stat::MobilityFallback, 1);
        if search.wait {
            self.change_group(zone, number, search.mobility, BLOCK_FRAMES / 2);
        }
        Some(number)
    }

    /// Makes a block serve another group if of each [`BLOCK_FRAMES`] frames so many are free; used frames join it
    /// when freed.
    pub(in crate::page_alloc) fn change_group(
        &self,
        zone: &Zone,
        number: BlockNumber,
        mobility: Mobility,
        least_free: usize,
    ) {
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let (free, all) = (block.free.load(Ordering::Relaxed), block.capacity.load(Ordering::Relaxed));
        let changes = block.state() == BlockState::Small
            && block.zone() == usize::from(zone.number)
            && block.mobility() != mobility as u8
            && usize::from(free) * BLOCK_FRAMES >= usize::from(all) * least_free;
        if changes {
            block.set_group(zone.number, mobility as u8);
            self.relist(zone, number, block);
            self.frames.count(Stat::MobilityChange, 1);
        }
        block.unlock(self.frames.platform);
    }

    /// Splits a whole block into small pieces, in the searcher's shard. `spares_last`: not one of the last
    /// whole blocks, which are taken when all else is used.
    pub(in crate::page_alloc) fn split_whole(
        &self,
        zone: &Zone,
        search: Search,
        spares_last: bool,
        among: SplitFrom,
    ) -> Option<BlockNumber> {
        let (pool, number, zeroed) = zone.take_block(self.frames.platform, search, spares_last, among)?;
        let (block, shard) = (self.frames.memmap.block(number), &zone.shards[search.home].0);
        // This code may have interrupted the holder of either lock; then the block goes back. What it interrupted
        // may hold another pool, but not this one, whose lock was free a moment ago.
        let Some(mut index) = self.lock_both(block, shard, search.wait) else {
            pool.lock(self.frames.platform).put(&self.frames.memmap, number, 1, zeroed);
            return None;
        };
        self.make_small(zone, number, block, FrameMask::EMPTY, zeroed);
        block.shard.store(search.home as u16, Ordering::Relaxed);
        block.set_group(zone.number, search.mobility as u8);
        index.relist(&self.frames.memmap, number, block);
        drop(index);
        block.unlock(self.frames.platform);
        self.frames.count(Stat::BlockSplit, 1);
        Some(number)
    }

    /// Locks a block and a shard's index, both with or both without waiting.
    fn lock_both<'a>(
        &'a self,
        block: &Block,
        shard: &'a SpinLock<ShardIndex>,
        wait: bool,
    ) -> Option<SpinGuard<'a, ShardIndex, P>> {
        if wait {
            block.lock(self.frames.platform);
            return Some(shard.lock(self.frames.platform));
        }
        if !block.try_lock(self.frames.platform) {
            return None;
        }
        let index = shard.try_lock(self.frames.platform);
        if index.is_none() {
            block.unlock(self.frames.platform);
        }
        index
    }
}

/// The shards other than the searcher's own, from the next one on.
pub(in crate::page_alloc) fn other_shards(zone: &Zone, search: Search) -> impl Iterator<Item = usize> {
    let count = zone.shards.len();
    (1..count).map(move |step| (search.home + step) % count)
}
