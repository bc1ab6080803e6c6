//! Where to look for frames that cannot move: in areas of 1 GiB that contain some already.
//!
//! # Order
//!
//! An unmovable or reclaimable request that finds no block of its group in its CPU's own shard takes, in
//! order,
//!
//! 1. a whole block of a tainted area, unless those are short;
//! 2. from a block of its group in another shard, whose free blocks count only in tainted areas;
//! 3. one of the last whole blocks of a tainted area;
//! 4. from a block of movable frames in a tainted area, if at least a quarter of the block is free;
//! 5. unless whole blocks are short, one of a tainted area that 1 did not reach; or its shard's free block; or
//!    any whole one. The last two may taint an area;
//! 6. from a block of the other group whose frames do not move, which is tainted too;
//! 7. from a block as in 4, with [`LEAST_FREE`] free frames or more;
//! 8. as in 5, however few whole blocks there are, and then from the block of another group with the largest
//!    free group.
//!
//! A block of 4 or 7 changes over to the requester's group, whatever is in use in it: its movable frames leave
//! it one by one, and their places stay in a tainted area. That of 4 is the first of which half is free, or
//! else the emptiest of its area.
//!
//! # Cost
//!
//! A search tries [`AREAS_TRIED`] areas, one in an interrupt, and looks at each record of them at most once.
//! If no block was a quarter free, the next [`AREA_REST`](crate::limits::AREA_REST) searches of its order or
//! more leave step 4 out, or fewer where another area becomes tainted. For step 7 they go on from block to
//! block: each takes the first with [`LEAST_FREE`] free frames. If none has so many, or none so many in a
//! row as the request needs, those of its order or more leave out both.
//!
//! A search in an interrupt may find a block that the interrupted code has locked, here as in an index. It
//! finds the same one each time, so it does not look again: the request fails in this zone, as where no memory
//! is.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::addr::BlockNumber;
use crate::limits::{AREAS_TRIED, BLOCK_FRAMES, LEAST_FREE};
use crate::memmap::BlockState;
use crate::page_alloc::request::gfp::Mobility;
use crate::page_alloc::store::Store;
use crate::page_alloc::store::search::{Search, other_shards};
use crate::page_alloc::store::zone::{SplitFrom, Zone};
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// A block of movable frames: its free frames first, so that the emptiest is the largest.
type Candidate = (u16, BlockNumber);

/// A block with so many free frames is taken at once.
const HALF: u16 = BLOCK_FRAMES as u16 / 2;
const QUARTER: u16 = HALF / 2;
const _: () = assert!(LEAST_FREE < QUARTER);

impl<P: FramePlatform> Store<'_, P> {
    /// A block for an unmovable or reclaimable request, in a tainted area if there is one.
    #[cold]
    pub(in crate::page_alloc) fn find_immovable(&self, zone: &Zone, search: Search) -> Option<BlockNumber> {
        let areas = if search.wait { AREAS_TRIED } else { 1 };
        let split = |spares_last| {
            let mut areas = zone.areas.to_try(areas).map(|area| zone.areas.blocks(area));
            areas.find_map(|blocks| self.split_whole(zone, search, spares_last, SplitFrom::Area(blocks)))
        };
        let elsewhere =
            || other_shards(zone, search).find_map(|shard| self.find_in_group(zone, shard, search));
        let tainted = split(true).or_else(elsewhere).or_else(|| split(false));
        if tainted.is_some() {
            return tainted;
        }
        let scans = zone.areas.may_scan(search.order);
        let found = if scans { self.scan_areas(zone, search, areas) } else { None };
        let [alike, _] = search.mobility.fallbacks();
        let take = |(_, number): Candidate| self.take_over(zone, search, number);
        let few = || if scans { found } else { self.first_of_few(zone, search, areas) };
        found
            .filter(|&(free, _)| free >= QUARTER)
            .map(take)
            .or_else(|| self.find_free(zone, search, true))
            .or_else(|| self.find_in_groups(zone, search, &[alike]))
            .or_else(|| few().map(take))
            .or_else(|| self.find_free(zone, search, false))
            .or_else(|| self.find_in_groups(zone, search, &search.mobility.fallbacks()))
    }

    /// A whole block, or the own shard's free one: a request that comes and goes then splits and merges none.
    /// `keep_some`: not if whole blocks are short.
    fn find_free(&self, zone: &Zone, search: Search, keep_some: bool) -> Option<BlockNumber> {
        if keep_some && zone.is_short(self.frames.platform, search.wait) {
            return None;
        }
        self.split_whole(zone, search, keep_some, SplitFrom::Alike)
            .or_else(|| self.own_spare(zone, search))
            .or_else(|| self.split_whole(zone, search, keep_some, SplitFrom::All))
    }

    /// Changes a block of movable frames over to the searcher's group, if the search may wait.
    fn take_over(&self, zone: &Zone, search: Search, number: BlockNumber) -> BlockNumber {
        self.frames.count(Stat::MobilityFallback, 1);
        if search.wait {
            self.change_group(zone, number, search.mobility, LEAST_FREE.into());
        }
        number
    }

    /// The emptiest block of movable frames of the tainted areas that the search tries, or the first that is
    /// empty enough.
    fn scan_areas(&self, zone: &Zone, search: Search, areas: usize) -> Option<Candidate> {
        let (mut best, mut last) = (None, None);
        for area in zone.areas.to_try(areas) {
            best = best.max(self.scan(zone, search, zone.areas.blocks(area), HALF));
            if best.is_some_and(|(free, _)| free >= QUARTER) {
                return best;
            }
            last = Some(area);
        }
        // An interrupt looks at too little to say.
        if search.wait {
            zone.areas.found_little(search.order, best.is_some());
            if best.is_none() {
                zone.areas.begin_behind(last);
            }
        }
        best
    }

    /// The first block as in step 7, from where the last search for one ended.
    fn first_of_few(&self, zone: &Zone, search: Search, areas: usize) -> Option<Candidate> {
        let mut last = None;
        for (area, blocks) in zone.areas.to_resume(search.order, areas)? {
            if let Some(found) = self.scan(zone, search, blocks, LEAST_FREE) {
                zone.areas.resume_behind(found.1);
                return Some(found);
            }
            last = Some(area);
        }
        if search.wait {
            zone.areas.found_little(search.order, false);
            zone.areas.begin_behind(last);
        }
        None
    }

    /// The emptiest of these blocks that serve movable requests, or the first with `enough` free frames. A hint:
    /// it takes no lock.
    fn scan(&self, zone: &Zone, search: Search, blocks: Range<u32>, enough: u16) -> Option<Candidate> {
        let (mut best, mut looked_at) = (None, 0);
        for number in blocks.map(BlockNumber) {
            let Some(block) = self.frames.memmap.get(number) else { continue };
            looked_at += 1;
            let candidate = Some((block.free.load(Ordering::Relaxed), number));
            let fits = candidate > best.max(Some((LEAST_FREE, BlockNumber(0))))
                && block.state() == BlockState::Small
                && block.zone() == usize::from(zone.number)
                && block.mobility() == Mobility::Movable as u8
                && block.free_order.load(Ordering::Relaxed) > search.order.get()
                && !zone.isolated.contains(number);
            if fits {
                best = candidate;
            }
            if best.is_some_and(|(free, _)| free >= enough) {
                break;
            }
        }
        self.frames.count(Stat::MobilityScanned, looked_at);
        best
    }
}
