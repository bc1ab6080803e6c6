//! Finds anonymous folios that can be moved, and sets them aside for it.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::state::touch;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Frames<'_, P> {
    /// Holds the anonymous folio of order 0 to 9 that starts at `frame`; its order. Such a folio is mapped by
    /// leaves, and not held: page cache, pages of a pool and folios set aside are. While it is held it is not
    /// freed, and no leaf of it gains the right to store, since its address space does not own it alone.
    /// [`release`](crate::page_alloc::MapCounts::release) of the same frames ends this.
    pub fn set_aside(&self, frame: Frame) -> Option<Order> {
        let (at, mut order) = (frame.index_in_block(), None);
        self.set_aside_some(frame.block(), at..at + 1, |folio, _| {
            order = Order::new(folio.count.trailing_zeros() as u8);
            false
        });
        order
    }

    /// As [`Self::set_aside`], for all such folios that start in these places of a block. Shows each with its
    /// origin until `show` wants no more. Returns the place behind the last one.
    pub(crate) fn set_aside_some(
        &self,
        number: BlockNumber,
        starts: Range<usize>,
        mut show: impl FnMut(FrameRange, Origin) -> bool,
    ) -> usize {
        let Some(block) = self.memmap.get(number) else { return starts.end };
        let (mut from, mut held, mut more) = (starts.start, 0, true);
        block.lock(self.platform);
        while more && let Some((start, order)) = self.movable_in(block, from..starts.end) {
            let folio = FrameRange::folio(number.first_frame().add(start as u64), order);
            let frames = folio.count as usize;
            from = start + frames;
            let Some(origin) = self.origin_in(block, folio.start) else { continue };
            block.held.insert_run(start, frames);
            touch(block, start, frames);
            held += folio.count;
            more = show(folio, origin);
        }
        block.unlock(self.platform);
        self.count(Stat::CompactIsolated, held);
        if more { starts.end } else { from }
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
        let found = self.movable_in(block, from..BLOCK_FRAMES);
        block.unlock(self.platform);
        found.map(|(at, _)| number.first_frame().add(at as u64))
    }

    /// The first that starts in these places, and its order. Under the block's lock.
    fn movable_in(&self, block: &Block, starts: Range<usize>) -> Option<(usize, Order)> {
        let mut at = starts.start;
        while at < starts.end && matches!(block.state(), BlockState::Small | BlockState::Folio) {
            if let Some(order) = self.movable_at(block, at) {
                return Some((at, order));
            }
            at = match block.state() {
                BlockState::Small => block.heads.load().next_set(at + 1).unwrap_or(BLOCK_FRAMES),
                _ => BLOCK_FRAMES,
            };
        }
        None
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
