//! Takes bad frames out of free memory.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Order};
use crate::memmap::{Block, FrameMask, FrameState};
use crate::page_alloc::request::gfp::Mobility;
use crate::page_alloc::store::zone::Zone;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::FramePlatform;

impl<P: FramePlatform> Store<'_, P> {
    /// Takes a free frame out of its block. Under the block's lock.
    pub(in crate::page_alloc) fn lose_free(&self, number: BlockNumber, block: &Block, index: usize) {
        let zone = &self.zones[block.zone()];
        zeroes::change(zone, block, block.zeroed().without(FrameMask::run(index, 1)));
        block.used.insert_run(index, 1);
        block.held.insert_run(index, 1);
        block.free.fetch_sub(1, Ordering::Relaxed);
        let left = FrameMask::ALL.without(block.used.load()).largest_group();
        block.free_order.store(left.min(Order::BLOCK.get()), Ordering::Relaxed);
        self.frames.lose(block, index);
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        let mut lists = shard.0.lock(self.frames.platform);
        if shard.spare() == Some(number) {
            shard.set_spare(None);
        }
        lists.relist(&self.frames.memmap, number, block);
        drop(lists);
        zone.add_free(-1);
    }

    /// Puts an unowned block, its record all zero, into the store in small pieces, without its bad frames.
    pub(in crate::page_alloc) fn put_in_pieces(&self, zone: &Zone, number: BlockNumber, bad: FrameMask) {
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        self.make_small(zone, number, block, bad, false);
        block.shard.store((number.0 as usize % zone.shards.len()) as u16, Ordering::Relaxed);
        block.set_group(zone.number, Mobility::Movable as u8);
        if let Some(columns) = block.columns() {
            bad.runs().for_each(|(start, count)| columns.set_states(start, count, FrameState::BAD));
        }
        let free = i64::from(block.free.load(Ordering::Relaxed));
        self.relist(zone, number, block);
        block.unlock(self.frames.platform);
        zone.add_free(free);
    }
}
