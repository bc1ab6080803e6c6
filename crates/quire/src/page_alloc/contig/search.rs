//! Empties one block of a zone, whichever costs little.
//!
//! A pool that grows does so once for each page, so no search looks at all blocks. The blocks of a zone are shown
//! in *rounds*, and a search goes on where the last one ended. A round is a few *passes*: the first shows the
//! blocks of which nothing must move, each later one those that cost at most twice as much as the cheapest one
//! left. So a round shows each block once, cheap ones first, and a search that saw a whole round knows that no
//! block can be emptied.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, FrameRange};
use crate::limits::{BLOCK_FRAMES, SECTION_BLOCKS};
use crate::memmap::{BlockState, DescriptorFlags};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::store::isolate::Shape;
use crate::page_alloc::store::isolated::WalkState;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// The limit that shows all blocks.
pub(super) const ANY: u16 = BLOCK_FRAMES as u16;
/// The limit up to which blocks of all zones come before any others: no gain is worth a full block's move, while
/// there is a cheaper one.
pub(super) const CHEAP: u16 = ANY / 2;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Empties a block of the zone of which at most `limit` frames must move. Gives up when `tries` blocks could
    /// not be emptied, or all that there are; below a limit of a whole block, it may miss some.
    pub(super) fn empty_any_block(
        &self,
        zone: &Zone,
        shape: Shape,
        (limit, mut tries): (u16, usize),
        move_out: &mut impl FnMut(FrameRange),
    ) -> Option<BlockNumber> {
        let (walk, all) = (&zone.isolated.walk, limit == ANY);
        let mut rounds = if all && walk.load() != WalkState::default() { 2 } else { 1 };
        if walk.load().least > limit {
            walk.store(WalkState::default());
        }
        while tries > 0 && !self.platform().is_dying() {
            match self.next_block(zone, limit) {
                Some(number) if self.empty_this(zone, number, shape, move_out) => return Some(number),
                Some(_) => tries -= 1,
                None if rounds > 1 => rounds -= 1,
                None => {
                    zone.isolated.barren_at.store(zone.free_frames(), Ordering::Relaxed);
                    return None;
                }
            }
        }
        None
    }

    /// The next block of the round that may be emptied; `None` at the end of the round, or when all that are
    /// left in it cost more than `limit`.
    fn next_block(&self, zone: &Zone, limit: u16) -> Option<BlockNumber> {
        let mut pass = zone.isolated.walk.load();
        let found = self.next_of_round(zone, limit, &mut pass);
        zone.isolated.walk.store(pass);
        found
    }

    /// The same for a round of the caller's, which goes on from `pass`.
    pub(super) fn next_of_round(&self, zone: &Zone, limit: u16, pass: &mut WalkState) -> Option<BlockNumber> {
        let mut looked_at = 0_u64;
        let found = loop {
            let mut blocks = self.blocks_from(zone, BlockNumber(pass.next), &mut looked_at);
            let found = blocks.find(|&number| {
                let cost = self.store().cost_of(self.frames().memmap.block(number));
                // A page of a pool costs more than a block, since another one replaces it: its block is no gain.
                let Some(cost) = cost.map(|cost| cost as u16).filter(|&cost| cost <= ANY) else {
                    return false;
                };
                if cost > pass.most && (cost < pass.beyond || pass.beyond == 0) {
                    pass.beyond = cost;
                }
                (pass.least..=pass.most).contains(&cost) && !self.has_unmovable(number)
            });
            if let Some(number) = found {
                pass.next = number.0 + 1;
                break found;
            }
            let least = pass.beyond;
            let most = if least <= limit { limit.min(2 * least) } else { 2 * least };
            *pass = WalkState { least, most, ..WalkState::default() };
            if least == 0 || least > limit {
                break None;
            }
        };
        self.count(Stat::ContigScanned, looked_at);
        found
    }

    /// The blocks of a zone from a number on, in the order of its regions, with a reschedule point for each
    /// section. Counts them.
    pub(super) fn blocks_from(
        &self,
        zone: &Zone,
        from: BlockNumber,
        looked_at: &mut u64,
    ) -> impl Iterator<Item = BlockNumber> {
        let blocks = zone.pools.iter().flat_map(move |pool| {
            let (first, count) = pool.lock(self.platform()).region();
            (first.0.max(from.0)..first.0 + count).map(BlockNumber)
        });
        blocks.inspect(|_| {
            *looked_at += 1;
            if looked_at.is_multiple_of(SECTION_BLOCKS as u64) {
                self.platform().reschedule_point();
            }
        })
    }

    /// Whether a block has folios that are neither mapped, held for a task nor on a list. By its record it may
    /// cost little, but a page table, say, cannot move.
    pub(super) fn has_unmovable(&self, number: BlockNumber) -> bool {
        let block = self.frames().memmap.block(number);
        self.frames().in_store(|| {
            if block.state() == BlockState::Small {
                return self.store().has_fixed(block);
            }
            block.lock(self.platform());
            let found = match block.state() {
                BlockState::Folio => {
                    let mapped = block.large_maps.load(Ordering::Relaxed) > 0
                        || block.small_maps(self.platform()).any();
                    !mapped && !block.folio().has(DescriptorFlags::HUGE)
                }
                _ => false,
            };
            block.unlock(self.platform());
            found
        })
    }
}
