//! Entirely free blocks in small pieces become whole again, all but one in each shard: its *spare*.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::shard::Shard;
use super::split::AREA;
use super::store::SMALL_CAPACITY;
use super::zeroes;
use super::zone::Zone;
use crate::addr::{BlockNumber, Frame, FrameRange};
use crate::limits::{BLOCK_FRAMES, DESCRIPTOR_FRAMES};
use crate::memmap::{Block, BlockState, FrameMask};
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// Blocks of one shard that one call makes whole, at most.
const MERGES: usize = 8;

/// A block that was made whole: where its descriptors stood, if not in the block itself.
pub(super) struct Merged {
    area: Option<Frame>,
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Puts a block that was just made whole into its pool, and its descriptors' frames with it.
    #[cold]
    #[inline(never)]
    pub(super) fn put_merged(&self, zone: &Zone, number: BlockNumber, merged: Merged) {
        match merged.area {
            None => zone.add_free(DESCRIPTOR_FRAMES as i64),
            Some(area) => {
                self.release_held(FrameRange::folio(area, AREA));
            }
        }
        // Its descriptors stood in it, or nobody knows what.
        zone.put_blocks(self.platform, &self.memmap, number, 1, false);
        self.count(Stat::BlockMerge, 1);
    }

    /// An entirely free block becomes its shard's spare, or whole again if there is one already. Under the block's
    /// lock. If the block is whole now, the caller puts it into the pool. One whose descriptors stand elsewhere is no spare,
    /// nor is one that is isolated.
    #[cold]
    #[inline(never)]
    pub(super) fn merge_or_spare(
        &self,
        zone: &Zone,
        shard: &Shard,
        number: BlockNumber,
        block: &Block,
    ) -> Option<Merged> {
        let no_spare = block.area_elsewhere().is_some() || zone.isolated.contains(number);
        let mut index = shard.0.lock(self.platform);
        // A spare that is used again needs the name no more.
        if !no_spare && !shard.spare().is_some_and(|spare| self.memmap.block(spare).is_entirely_free()) {
            shard.set_spare(Some(number));
            index.relist(&self.memmap, number, block);
            return None;
        }
        index.unlist(&self.memmap, number, block);
        drop(index);
        Some(self.forget_small(zone, block))
    }

    /// Makes the record of an entirely free block say "whole and free" again. Under the block's lock.
    fn forget_small(&self, zone: &Zone, block: &Block) -> Merged {
        zone.descriptor_frames.fetch_sub(DESCRIPTOR_FRAMES as u64, Ordering::Relaxed);
        let merged = Merged { area: block.area_elsewhere() };
        zeroes::change(zone, block, FrameMask::EMPTY);
        block.reset();
        merged
    }

    /// Makes the entirely free blocks of every shard of a zone whole: its spare, and those that an interrupt left, some at a
    /// time; how many there were.
    pub(super) fn merge_spares(&self, zone: &Zone) -> usize {
        zone.shards.iter().map(|shard| (0..MERGES).take_while(|_| self.merge_one(zone, shard)).count()).sum()
    }

    /// Makes an isolated block whole, if it is entirely free and was left in pieces.
    pub(super) fn merge_isolated(&self, zone: &Zone, number: BlockNumber) {
        let block = self.memmap.block(number);
        if !block.is_entirely_free() {
            return;
        }
        block.lock(self.platform);
        let merge = block.state() == BlockState::Small && could_be_whole(block);
        if merge {
            let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))].0;
            shard.lock(self.platform).unlist(&self.memmap, number, block);
        }
        let merged = merge.then(|| self.forget_small(zone, block));
        block.unlock(self.platform);
        if let Some(merged) = merged {
            self.put_merged(zone, number, merged);
        }
    }

    fn merge_one(&self, zone: &Zone, shard: &Shard) -> bool {
        let found = shard.spare().filter(|&spare| self.memmap.block(spare).is_entirely_free());
        let found = found.or_else(|| shard.0.lock(self.platform).entirely_free(&self.memmap));
        let Some(number) = found else { return false };
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let mut index = shard.0.lock(self.platform);
        // Since the look somebody may have taken frames of it, or all of it.
        let merge = block.state() == BlockState::Small
            && could_be_whole(block)
            && core::ptr::eq(shard, &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))])
            && block.zone() == usize::from(zone.number);
        if merge {
            if shard.spare() == Some(number) {
                shard.set_spare(None);
            }
            index.unlist(&self.memmap, number, block);
        }
        drop(index);
        let merged = merge.then(|| self.forget_small(zone, block));
        block.unlock(self.platform);
        if let Some(merged) = merged {
            self.put_merged(zone, number, merged);
        }
        merge
    }
}

/// Whether all of the block is free, and nothing of it lies at a range's edge or is bad. Under the block's lock, or as a hint.
pub(super) fn could_be_whole(block: &Block) -> bool {
    let (free, all) = (block.free.load(Ordering::Relaxed), block.capacity.load(Ordering::Relaxed));
    free == all && all >= SMALL_CAPACITY && is_complete(block, all)
}

/// Whether a block in small pieces with so many frames has all that there are: none lies at a range's edge or is bad.
#[inline]
pub(super) fn is_complete(block: &Block, capacity: u16) -> bool {
    capacity == if block.lanes_at().is_some() { BLOCK_FRAMES as u16 } else { SMALL_CAPACITY }
}
