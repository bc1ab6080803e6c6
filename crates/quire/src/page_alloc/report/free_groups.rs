//! Free memory by the size of its pieces, as in `/proc/buddyinfo` and `/proc/pagetypeinfo`.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::BlockNumber;
use crate::memmap::{BlockState, FrameMask};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::request::gfp::{Mobility, ZoneKind};
use crate::page_alloc::store::pool::Pool;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::sync::SpinLock;

/// One more than the largest order that is counted apart. A larger group counts as several of that order,
/// which is Linux's `MAX_PAGE_ORDER` on x86-64.
pub const FREE_ORDERS: usize = 11;
/// Blocks that are counted under one hold of a pool's lock: an even number.
const CHUNK: u32 = 64;

/// The store's free memory in one zone. Frames on per-CPU lists are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeGroups {
    /// The node.
    pub node: u8,
    /// The kind.
    pub kind: ZoneKind,
    /// For each [`Mobility`], how many free groups of each order there are that belong to no larger one. A
    /// whole free block belongs to no mobility group, and counts as movable.
    pub groups: [[u64; FREE_ORDERS]; Mobility::ALL.len()],
    /// For each [`Mobility`], how many blocks serve it, those of a folio in use and whole free ones included.
    pub blocks: [u64; Mobility::ALL.len()],
    /// How many areas of 1 GiB the zone has all of, without tables from start-up.
    pub areas: u64,
    /// How many of these contain unmovable or reclaimable frames, by the blocks of those.
    pub tainted: u64,
}

impl FreeGroups {
    /// How many free groups of each order there are in all mobility groups together.
    pub fn sum(&self) -> [u64; FREE_ORDERS] {
        core::array::from_fn(|order| self.groups.iter().map(|groups| groups[order]).sum())
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// The free groups of every zone that has memory, in the order of [`Self::zone_info`]. Reads the record
    /// of every block. Exact while nothing is allocated or freed.
    pub fn free_groups(&self) -> impl Iterator<Item = FreeGroups> + '_ {
        self.zones().map(|zone| self.free_groups_of(zone))
    }

    fn free_groups_of(&self, zone: &Zone) -> FreeGroups {
        let (groups, blocks) = Default::default();
        let [areas, tainted] = zone.areas.count();
        let mut found = FreeGroups { node: zone.node, kind: zone.kind, groups, blocks, areas, tainted };
        let (number, movable) = (usize::from(zone.number), Mobility::Movable as usize);
        for (_, block) in self.frames().memmap.blocks() {
            let state = block.state();
            let used = matches!(state, BlockState::Small | BlockState::Folio | BlockState::FolioTail);
            if !used || block.zone() != number {
                continue;
            }
            let mobility = usize::from(block.mobility()).min(Mobility::ALL.len() - 1);
            found.blocks[mobility] += 1;
            if state == BlockState::Small {
                let free = FrameMask::ALL.without(block.used.load()).count_groups();
                found.groups[mobility].iter_mut().zip(free).for_each(|(sum, more)| *sum += more);
            }
        }
        for pool in zone.pools.iter() {
            let [blocks, pairs] = self.whole_blocks(pool);
            found.blocks[movable] += blocks;
            found.groups[movable][FREE_ORDERS - 2] += blocks - 2 * pairs;
            found.groups[movable][FREE_ORDERS - 1] += pairs;
        }
        found
    }

    /// How many free blocks a pool has, and how many aligned pairs of free blocks.
    fn whole_blocks(&self, pool: &SpinLock<Pool>) -> [u64; 2] {
        let (first, count) = pool.lock(self.platform()).region();
        let end = first.0 + count;
        let (mut blocks, mut pairs, mut at) = (0, 0, first.0);
        while at < end {
            let next = (at / CHUNK + 1).saturating_mul(CHUNK).min(end);
            let pool = pool.lock(self.platform());
            let free = |number: &u32| pool.is_free(BlockNumber(*number));
            let part: Range<u32> = at..next;
            blocks += part.clone().filter(free).count() as u64;
            pairs +=
                part.filter(|at| at % 2 == 0 && at + 1 < next && free(at) && free(&(at + 1))).count() as u64;
            at = next;
        }
        [blocks, pairs]
    }
}
