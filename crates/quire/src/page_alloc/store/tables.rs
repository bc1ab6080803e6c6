//! Frames that hold tables of blocks in small pieces: metadata, which is not handed out.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::small::{count_taken, take_group};
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Store<'_, P> {
    /// Takes a free frame of a block for a table of that block.
    pub(in crate::page_alloc) fn take_own_table(&self, number: BlockNumber) -> Option<Frame> {
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let zone = &self.zones[block.zone()];
        let free = block.free_order.load(Ordering::Relaxed) > 0 && !zone.isolated.contains(number);
        let index = free.then(|| take_group(zone, block, &Search::within(Order::FRAME))).flatten();
        if let Some(index) = index {
            count_taken(block, 1, Order::FRAME);
            mark_table(zone, block, index);
        }
        block.unlock(self.frames.platform);
        let index = index?;
        zone.add_free(-1);
        Some(number.first_frame().add(index as u64))
    }

    /// Makes a frame that was just allocated one for a table.
    pub(in crate::page_alloc) fn claim_table(&self, table: Frame) {
        let block = self.frames.memmap.block(table.block());
        block.lock(self.frames.platform);
        debug_assert!(block.state() == BlockState::Small);
        mark_table(&self.zones[block.zone()], block, table.index_in_block());
        block.unlock(self.frames.platform);
    }

    /// Frees a frame in which a table stood. No lock is held.
    pub(in crate::page_alloc) fn put_table(&self, table: Frame) {
        let (number, block, index) =
            (table.block(), self.frames.memmap.block(table.block()), table.index_in_block());
        block.lock(self.frames.platform);
        block.held.remove_run(index, 1);
        block.columns().inspect(|columns| columns.set_state(index, FrameState::FREE));
        block.capacity.fetch_add(1, Ordering::Relaxed);
        self.zones[block.zone()].descriptor_frames.fetch_sub(1, Ordering::Relaxed);
        self.frames.note_freed(FrameRange::folio(table, Order::FRAME));
        self.store_put_one(number, block, index, Order::FRAME);
    }
}

/// Marks a frame in use as metadata. Under its block's lock.
fn mark_table(zone: &Zone, block: &Block, index: usize) {
    block.held.insert_run(index, 1);
    block.heads.remove_run(index, 1);
    block.columns().inspect(|columns| columns.set_state(index, FrameState::RESERVED));
    block.capacity.fetch_sub(1, Ordering::Relaxed);
    zone.descriptor_frames.fetch_add(1, Ordering::Relaxed);
}
