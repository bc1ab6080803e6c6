//! Keeps the blocks of a range from being allocated while it is emptied, and takes them.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Order};
use crate::limits::{BLOCK_FRAMES, RANGE_BLOCKS};
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask};
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::request::gfp::{Contents, Mobility};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::capacity::is_complete;
use crate::page_alloc::store::pool::Pool;
use crate::page_alloc::store::whole::blocks_of;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::sync::Pinned;

/// What the range is taken as.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct Shape {
    pub(in crate::page_alloc) blocks: u32,
    pub(in crate::page_alloc) align: u32,
    /// Order of each folio in it.
    pub(in crate::page_alloc) order: Order,
}

impl<P: FramePlatform> Store<'_, P> {
    /// Takes a whole free block as a folio of order 9; `None` if it is not free.
    pub(in crate::page_alloc) fn take_this_block(&self, number: BlockNumber) -> Option<Contents> {
        let (zone, zeroed) = self.zones.iter().find_map(|zone| {
            let mut pools = zone.pools.iter().map(|pool| pool.lock(self.frames.platform));
            let taken = pools.find(|pool| pool.spans(number))?.take_exactly(number)?;
            Some((zone, taken))
        })?;
        self.claim(zone, self.frames.memmap.block(number), Order::BLOCK, BlockState::Folio, false);
        self.count_taken_range(zone, BLOCK_FRAMES);
        Some(if zeroed { Contents::Zeroed } else { Contents::Unknown })
    }

    /// Whether a block in small pieces serves movable requests, by its record.
    pub(in crate::page_alloc) fn serves_movable(&self, block: &Block) -> bool {
        !self.group_by_mobility || block.mobility() == Mobility::Movable as u8
    }

    /// How many frames of a block would have to move; `None` when some cannot move. The record of a block that
    /// serves movable requests says so alone. Another block may have changed over, and be full of movable
    /// frames: it is looked into. No lock is held.
    pub(in crate::page_alloc) fn cost_of(&self, block: &Block) -> Option<u64> {
        match block.state() {
            BlockState::Whole | BlockState::Listed => Some(0),
            BlockState::Small => {
                let capacity = block.capacity.load(Ordering::Relaxed);
                let used = capacity.saturating_sub(block.free.load(Ordering::Relaxed));
                // Last, since it locks the block and looks at all its frames.
                let fixed = || self.frames.in_store(|| self.has_fixed(block));
                let movable = || used == 0 || self.serves_movable(block) || !fixed();
                (is_complete(block) && movable()).then_some(used.into())
            }
            BlockState::Folio => {
                let single = block.order.load(Ordering::Relaxed) == Order::BLOCK.get();
                let huge = block.folio().has(DescriptorFlags::HUGE);
                // For a page of a pool another one is needed, so others are better.
                let cost = if huge { 2 * BLOCK_FRAMES } else { BLOCK_FRAMES } as u64;
                (single && (huge || !block.held.contains(0))).then_some(cost)
            }
            BlockState::FolioTail | BlockState::Metadata | BlockState::Absent => None,
        }
    }

    /// Whether a block in small pieces has folios that are neither mapped, held for a task nor on a list.
    pub(in crate::page_alloc) fn has_fixed(&self, block: &Block) -> bool {
        block.lock(self.frames.platform);
        let columns = block.columns().filter(|_| block.state() == BlockState::Small);
        let found = columns.is_some_and(|columns| {
            let (heads, held) = (block.heads.load(), block.held.load());
            let unmapped = self.unmapped(block).intersection(heads);
            let any = |folios: FrameMask, is: &dyn Fn(usize) -> bool| {
                folios.runs().any(|(start, count)| (start..start + count).any(is))
            };
            any(unmapped, &|at| !columns.state(at).is_free())
                || any(held.intersection(heads), &|at| Origin::at(columns, at).is_managers())
        });
        block.unlock(self.frames.platform);
        found
    }

    /// Frames of a block in small pieces that are not free, and neither mapped nor held. Under its lock.
    pub(in crate::page_alloc) fn unmapped(&self, block: &Block) -> FrameMask {
        let mapped = block.small_maps(self.frames.platform).nonzero();
        block.used.load().without(mapped).without(block.held.load())
    }

    /// The parts of a range that are changed between two reschedule points, which it invokes. No lock is held, and
    /// the task is not pinned.
    fn stretches(&self, first: BlockNumber, blocks: u32) -> impl Iterator<Item = Range<u32>> {
        let end = first.0 + blocks;
        (first.0..end).step_by(RANGE_BLOCKS as usize).map(move |start| {
            if start > first.0 {
                self.frames.platform.reschedule_point();
            }
            start..end.min(start + RANGE_BLOCKS)
        })
    }

    /// The blocks of a range, with a reschedule point after each [`RANGE_BLOCKS`].
    pub(in crate::page_alloc) fn in_stretches(
        &self,
        first: BlockNumber,
        blocks: u32,
    ) -> impl Iterator<Item = BlockNumber> {
        self.stretches(first, blocks).flatten().map(BlockNumber)
    }

    /// Visits the blocks of a range, as many between two reschedule points.
    pub(in crate::page_alloc) fn each_in_stretches(
        &self,
        first: BlockNumber,
        blocks: u32,
        mut visit: impl FnMut(BlockNumber),
    ) {
        let mut visit_all = |stretch: Range<u32>| stretch.map(BlockNumber).for_each(&mut visit);
        self.stretches(first, blocks).for_each(|stretch| self.frames.in_store(|| visit_all(stretch)));
    }

    /// Runs `change` with the locked pool of a block, if it has one.
    fn with_pool<R>(
        &self,
        zone: &Zone,
        first: BlockNumber,
        change: impl FnOnce(&mut Pool) -> R,
    ) -> Option<R> {
        self.frames.in_store(|| {
            let mut pools = zone.pools.iter().map(|pool| pool.lock(self.frames.platform));
            pools.find(|pool| pool.spans(first)).map(|mut pool| change(&mut pool))
        })
    }

    /// Names blocks that the shards do not list, or none.
    fn isolate_in_shards(&self, zone: &Zone, blocks: Range<u32>) {
        for shard in zone.shards.iter() {
            shard.0.lock(self.frames.platform).isolated = blocks.clone();
        }
    }

    /// Stops allocations from the range, except of folios on per-CPU lists. Invokes reschedule points.
    pub(in crate::page_alloc) fn isolate(&self, zone: &Zone, first: BlockNumber, blocks: u32) {
        for stretch in self.stretches(first, blocks) {
            self.with_pool(zone, first, |pool| pool.isolate(&self.frames.memmap, first, stretch));
        }
        self.frames.in_store(|| {
            zone.isolated.set(first, blocks);
            self.isolate_in_shards(zone, first.0..first.0 + blocks);
        });
        self.each_in_stretches(first, blocks, |number| {
            let block = self.frames.memmap.block(number);
            block.lock(self.frames.platform);
            if block.state() == BlockState::Small {
                let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
                shard.hide(&mut shard.0.lock(self.frames.platform), &self.frames.memmap, number, block);
            }
            block.unlock(self.frames.platform);
        });
    }

    pub(in crate::page_alloc) fn collected(&self, zone: &Zone, first: BlockNumber) -> u32 {
        let mut pools = zone.pools.iter().map(|pool| pool.lock(self.frames.platform));
        pools.find(|pool| pool.spans(first)).map_or(0, |pool| pool.collected)
    }

    /// Takes all of the range if `take` and all of it is collected, or gives it back as it is. Returns whether it
    /// took it: not if one of its frames went bad meanwhile. Invokes reschedule points.
    pub(in crate::page_alloc) fn end_isolation(
        &self,
        zone: &Zone,
        first: BlockNumber,
        shape: Shape,
        take: bool,
    ) -> bool {
        let taken = take && self.with_pool(zone, first, Pool::take_isolated) == Some(true);
        self.frames.in_store(|| {
            self.isolate_in_shards(zone, 0..0);
            zone.isolated.end();
        });
        if taken {
            self.claim_range(zone, first, shape);
        } else {
            for stretch in self.stretches(first, shape.blocks) {
                self.with_pool(zone, first, |pool| pool.give_back(&self.frames.memmap, stretch));
            }
            self.each_in_stretches(first, shape.blocks, |number| {
                let block = self.frames.memmap.block(number);
                block.lock(self.frames.platform);
                if block.state() == BlockState::Small && block.zone() == usize::from(zone.number) {
                    self.relist(zone, number, block);
                }
                block.unlock(self.frames.platform);
            });
        }
        zone.isolated.aside.store(0, Ordering::Relaxed);
        taken
    }

    /// Writes the records of blocks that were collected, the first one last.
    fn claim_range(&self, zone: &Zone, first: BlockNumber, shape: Shape) {
        let per_folio = blocks_of(shape.order);
        for at in self.stretches(BlockNumber(0), shape.blocks).flatten() {
            let at = shape.blocks - 1 - at;
            let block = self.frames.memmap.block(first.add(at));
            let state = if at.is_multiple_of(per_folio) { BlockState::Folio } else { BlockState::FolioTail };
            block.next.store(0, Ordering::Relaxed);
            self.claim(zone, block, shape.order, state, false);
        }
        zone.add_free(-(i64::from(shape.blocks) * BLOCK_FRAMES as i64));
    }

    pub(in crate::page_alloc) fn count_taken_range(&self, zone: &Zone, frames: usize) {
        zone.add_free(-(frames as i64));
        let pinned = Pinned::new(self.frames.platform);
        self.count_alloc(pinned.cpu(), zone.number.into(), frames as u64);
    }
}
