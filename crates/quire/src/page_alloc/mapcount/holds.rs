//! Gives up holds, by which the page cache and pools own frames besides the leaves that map them.

use crate::addr::FrameRange;
use crate::memmap::BlockState;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::counter::Counter;
use crate::page_alloc::request::gfp::Contents;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Gives up the ownership that [`hold`](crate::page_alloc::Frames::hold) took. Frames that no leaf maps
    /// are free at once, the others when their last leaf goes. Returns how many became free.
    ///
    /// # Safety
    /// The caller holds the frames and does not use them afterwards; no value owns them (invariant 1).
    pub unsafe fn release(&self, frames: FrameRange) -> u64 {
        self.release_held(frames)
    }

    /// As [`Self::release`], for several runs: neighbours in one block share one hold of its lock.
    ///
    /// # Safety
    /// As for [`Self::release`].
    pub(crate) unsafe fn release_runs(&self, runs: impl Iterator<Item = FrameRange>) -> u64 {
        let mut counter = self.counter();
        runs.flat_map(FrameRange::by_block).map(|piece| counter.release(piece)).sum()
    }

    pub(in crate::page_alloc) fn release_held(&self, frames: FrameRange) -> u64 {
        let mut counter = self.counter();
        frames.by_block().map(|piece| counter.release(piece)).sum()
    }
}

impl<P: FramePlatform> Counter<'_, '_, P> {
    fn release(&mut self, piece: FrameRange) -> u64 {
        let block = self.enter(piece.start.block());
        let (start, count) = (piece.start.index_in_block(), piece.count as usize);
        debug_assert!(block.held.contains_run(start, count));
        block.held.remove_run(start, count);
        if block.state() == BlockState::Small {
            let unmapped = block.small_maps(self.counts.platform()).unmapped(start, count);
            return self.add_freed(block, unmapped);
        }
        self.free_folio_if_unmapped(piece.start.block(), block, Contents::Unknown)
    }
}
