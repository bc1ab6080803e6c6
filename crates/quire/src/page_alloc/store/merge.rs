//! Makes entirely free blocks in small pieces whole again, all but one in each shard: its *spare*.

use core::sync::atomic::Ordering;

use crate::addr::BlockNumber;
use crate::memmap::{Block, BlockState, Columns, FrameMask, TakenTables};
use crate::page_alloc::request::gfp::Mobility;
use crate::page_alloc::store::capacity::could_be_whole;
use crate::page_alloc::store::shard::Shard;
use crate::page_alloc::store::slots::CountSlot;
use crate::page_alloc::store::zone::Zone;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// Blocks of one shard that one call makes whole, at most.
const MERGES: usize = 8;

/// What a block of which all is free gave up.
pub(in crate::page_alloc) struct Merged {
    /// Its record is reset: it goes into its pool, known to be zero or not.
    whole: Option<bool>,
    /// Tables that it needs no more.
    tables: TakenTables,
    /// The slot of its counts.
    slot: Option<CountSlot>,
}

impl<P: FramePlatform> Store<'_, P> {
    /// Frees what a block gave up, and the block itself into its pool if it was made whole. No lock is held.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn put_emptied(&self, zone: &Zone, number: BlockNumber, emptied: Merged) {
        if let Some(zeroed) = emptied.whole {
            zone.put_blocks(self.frames.platform, &self.frames.memmap, number, 1, zeroed);
            self.frames.count(Stat::BlockMerge, 1);
        }
        emptied.tables.into_iter().flatten().for_each(|table| self.put_table(table));
        if let Some(slot) = emptied.slot {
            self.give_slot(slot);
        }
    }

    /// Decides what becomes of a block of which all is free. It becomes its shard's spare, which keeps its
    /// tables; or whole, if there is a spare or it is isolated. One that cannot be whole stays in pieces, and
    /// gives up its tables: in each of two blocks may stand a table of the other. Under the block's lock.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn settle_emptied(
        &self,
        zone: &Zone,
        number: BlockNumber,
        block: &Block,
    ) -> Option<Merged> {
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        let complete = could_be_whole(block);
        if complete {
            // A table of another block cannot move either, and an empty block of no group taints no area.
            zone.areas.clear(number, block);
            block.set_group(zone.number, Mobility::Movable as u8);
        }
        if complete && shard.spare() != Some(number) {
            let mut index = shard.0.lock(self.frames.platform);
            // A spare that is in use again is replaced.
            let free = |spare| self.frames.memmap.block(spare).is_entirely_free();
            if zone.isolated.contains(number) || shard.spare().is_some_and(free) {
                index.unlist(&self.frames.memmap, number, block);
                drop(index);
                return Some(self.forget_small(zone, number, block));
            }
            shard.set_spare(Some(number));
            index.relist(&self.frames.memmap, number, block);
        } else {
            self.relist(zone, number, block);
        }
        let tables = if complete { TakenTables::default() } else { block.take_tables() };
        if !complete {
            block.columns().inspect(|columns| columns.set_own_tables(0));
        }
        Some(Merged { whole: None, tables, slot: block.narrow().map(CountSlot::of) })
    }

    /// Resets the record of an entirely free block to "whole and free". Under the block's lock.
    fn forget_small(&self, zone: &Zone, number: BlockNumber, block: &Block) -> Merged {
        let zeroed = block.zeroed().is_full();
        zeroes::change(zone, block, FrameMask::EMPTY);
        zone.areas.clear(number, block);
        let tables = block.take_tables().map(|table| table.filter(|table| table.block() != number));
        let slot = block.lanes_at().map(CountSlot::of);
        // Its own tables are free with it.
        let own = block.columns().map_or(0, Columns::own_tables);
        block.columns().inspect(|columns| columns.set_own_tables(0));
        zone.add_free(own.into());
        zone.descriptor_frames.fetch_sub(own.into(), Ordering::Relaxed);
        block.reset();
        Merged { whole: Some(zeroed), tables, slot }
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
        let emptied = merge.then(|| self.forget_small(zone, number, block));
        block.unlock(self.frames.platform);
        if let Some(emptied) = emptied {
            self.put_emptied(zone, number, emptied);
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
        let emptied = merge.then(|| self.forget_small(zone, number, block));
        block.unlock(self.frames.platform);
        if let Some(emptied) = emptied {
            self.put_emptied(zone, number, emptied);
        }
        merge
    }

    pub(in crate::page_alloc) fn merge_all_spares(&self) -> usize {
        self.zones.iter().map(|zone| self.merge_spares(zone)).sum()
    }
}
