//! Finds anonymous folios that can be moved, and sets them aside for it.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::state::touch;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Frames<'_, P> {
    /// Holds the anonymous folio of order 0 to 9 that starts at `frame`; its order. Such a folio is mapped by
    /// leaves, and not held: page cache, pages of a pool and folios set aside are. While it is held it is not
    /// freed, and no leaf of it gains the right to store, since its address space does not own it alone.
    /// [`release`](crate::page_alloc::MapCounts::release) of the same frames ends this.
    pub fn set_aside(&self, frame: Frame) -> Option<Order> {
        let block = self.memmap.get(frame.block())?;
        block.lock(self.platform);
        let order = self.movable_at(block, frame.index_in_block());
        if let Some(order) = order {
            let (start, count) = (frame.index_in_block(), order.frames() as usize);
            block.held.insert_run(start, count);
            touch(block, start, count);
        }
        block.unlock(self.platform);
        order.inspect(|order| self.count(Stat::CompactIsolated, order.frames()))
    }

    /// The order of the anonymous folio that starts at an index of a block, if any. Under the block's lock.
    fn movable_at(&self, block: &Block, index: usize) -> Option<Order> {
        let maps = block.small_maps(self.platform);
        match block.state() {
            BlockState::Small if block.heads.contains(index) && maps.get(index) > 0 => {
                let frames = block.folio_frames(index);
                let order = Order::new(frames.ilog2() as u8).filter(|_| frames.is_power_of_two())?;
                let folio = FrameMask::run(index, frames);
                let free = block.held.load().intersection(folio).is_empty();
                let mapped = (index..index + frames).all(|at| maps.get(at) > 0);
                (free && mapped).then_some(order)
            }
            BlockState::Folio
                if index == 0
                    && block.order.load(Ordering::Relaxed) == Order::BLOCK.get()
                    && block.held.load().is_empty()
                    && !block.folio().has(DescriptorFlags::HUGE)
                    && (block.large_maps.load(Ordering::Relaxed) > 0 || maps.any()) =>
            {
                Some(Order::BLOCK)
            }
            _ => None,
        }
    }

    /// The next anonymous folio of a block that could be moved, from an index on.
    pub fn next_movable(&self, number: BlockNumber, from: usize) -> Option<Frame> {
        let block = self.memmap.get(number)?;
        block.lock(self.platform);
        let mut at = from;
        let found = loop {
            if at >= BLOCK_FRAMES || !matches!(block.state(), BlockState::Small | BlockState::Folio) {
                break None;
            }
            if self.movable_at(block, at).is_some() {
                break Some(number.first_frame().add(at as u64));
            }
            at = match block.state() {
                BlockState::Small => block.heads.load().next_set(at + 1).unwrap_or(BLOCK_FRAMES),
                _ => BLOCK_FRAMES,
            };
        };
        block.unlock(self.platform);
        found
    }

    /// Whether one of these frames is held, and not as the manager's metadata: they may be page cache.
    pub fn holds_any(&self, frames: FrameRange) -> bool {
        frames.by_block().any(|piece| {
            let Some(block) = self.memmap.get(piece.start.block()) else { return false };
            let run = FrameMask::run(piece.start.index_in_block(), piece.count as usize);
            block.lock(self.platform);
            let held = block.held.load().intersection(block.heads.load()).intersection(run);
            let found = block.state() == BlockState::Small && !held.is_empty();
            block.unlock(self.platform);
            found
        })
    }
}
