//! Makes entirely free blocks in small pieces whole again, all but one in each shard: its *spare*.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange};
use crate::limits::DESCRIPTOR_FRAMES;
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::frames::remainders::split_remainders;
use crate::page_alloc::store::capacity::{AREA, could_be_whole};
use crate::page_alloc::store::shard::Shard;
use crate::page_alloc::store::zone::Zone;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// Blocks of one shard that one call makes whole, at most.
const MERGES: usize = 8;

/// A block that was made whole: where its descriptors stood, if outside the block.
pub(in crate::page_alloc) struct Merged {
    area: Option<Frame>,
}

impl<P: FramePlatform> Store<'_, P> {
    /// Frees a block that was just made whole into its pool, and its descriptors' frames.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn put_merged(&self, zone: &Zone, number: BlockNumber, merged: Merged) {
        match merged.area {
            None => zone.add_free(DESCRIPTOR_FRAMES as i64),
            Some(area) => self.put_area(area),
        }
        // Its descriptors may have stood in it, so it is not known to be zero.
        zone.put_blocks(self.frames.platform, &self.frames.memmap, number, 1, false);
        self.frames.count(Stat::BlockMerge, 1);
    }

    /// Makes an entirely free block its shard's spare, or whole, for the caller to put into the pool: if
    /// there is a spare already, its descriptors stand elsewhere, or it is isolated. Under the block's lock.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn merge_or_spare(
        &self,
        zone: &Zone,
        shard: &Shard,
        number: BlockNumber,
        block: &Block,
    ) -> Option<Merged> {
        let no_spare = block.area_elsewhere().is_some() || zone.isolated.contains(number);
        let mut index = shard.0.lock(self.frames.platform);
        // A spare that is in use again is replaced.
        if !no_spare && !shard.spare().is_some_and(|spare| self.frames.memmap.block(spare).is_entirely_free())
        {
            shard.set_spare(Some(number));
            index.relist(&self.frames.memmap, number, block);
            return None;
        }
        index.unlist(&self.frames.memmap, number, block);
        drop(index);
        Some(self.forget_small(zone, block))
    }

    /// Resets the record of an entirely free block to "whole and free". Under the block's lock.
    fn forget_small(&self, zone: &Zone, block: &Block) -> Merged {
        zone.descriptor_frames.fetch_sub(DESCRIPTOR_FRAMES as u64, Ordering::Relaxed);
        let merged = Merged { area: block.area_elsewhere() };
        zeroes::change(zone, block, FrameMask::EMPTY);
        block.reset();
        merged
    }

    /// Makes up to [`MERGES`] entirely free blocks of each shard whole; returns how many.
    pub(in crate::page_alloc) fn merge_spares(&self, zone: &Zone) -> usize {
        zone.shards.iter().map(|shard| (0..MERGES).take_while(|_| self.merge_one(zone, shard)).count()).sum()
    }

    /// Makes an isolated block whole, if it is entirely free and still in pieces.
    pub(in crate::page_alloc) fn merge_isolated(&self, zone: &Zone, number: BlockNumber) {
        let block = self.frames.memmap.block(number);
        if !block.is_entirely_free() {
            return;
        }
        block.lock(self.frames.platform);
        let merge = block.state() == BlockState::Small && could_be_whole(block);
        if merge {
            let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))].0;
            shard.lock(self.frames.platform).unlist(&self.frames.memmap, number, block);
        }
        let merged = merge.then(|| self.forget_small(zone, block));
        block.unlock(self.frames.platform);
        if let Some(merged) = merged {
            self.put_merged(zone, number, merged);
        }
    }

    fn merge_one(&self, zone: &Zone, shard: &Shard) -> bool {
        let found = shard.spare().filter(|&spare| self.frames.memmap.block(spare).is_entirely_free());
        let found = found.or_else(|| shard.0.lock(self.frames.platform).entirely_free(&self.frames.memmap));
        let Some(number) = found else { return false };
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let mut index = shard.0.lock(self.frames.platform);
        // Meanwhile some of its frames, or all of it, may have been allocated.
        let merge = block.state() == BlockState::Small
            && could_be_whole(block)
            && core::ptr::eq(shard, &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))])
            && block.zone() == usize::from(zone.number);
        if merge {
            if shard.spare() == Some(number) {
                shard.set_spare(None);
            }
            index.unlist(&self.frames.memmap, number, block);
        }
        drop(index);
        let merged = merge.then(|| self.forget_small(zone, block));
        block.unlock(self.frames.platform);
        if let Some(merged) = merged {
            self.put_merged(zone, number, merged);
        }
        merge
    }

    /// Frees the frames, held for the manager, in which another block's descriptors stood.
    fn put_area(&self, area: Frame) {
        let (number, block) = (area.block(), self.frames.memmap.block(area.block()));
        let frames = FrameMask::run(area.index_in_block(), AREA.frames() as usize);
        block.lock(self.frames.platform);
        block.held.remove_run(area.index_in_block(), AREA.frames() as usize);
        split_remainders(block, frames);
        self.frames.note_freed(FrameRange::folio(area, AREA));
        self.store_put(number, block, frames);
    }

    pub(in crate::page_alloc) fn merge_all_spares(&self) -> usize {
        self.zones.iter().map(|zone| self.merge_spares(zone)).sum()
    }
}
