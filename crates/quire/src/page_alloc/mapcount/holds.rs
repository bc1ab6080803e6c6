//! Holds: what owns frames besides the leaves that map them, as the page cache and pools do.

use crate::addr::FrameRange;
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::mapcount::counter::Counter;
use crate::page_alloc::mapcount::state::touch;
use crate::page_alloc::request::gfp::Contents;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Marks frames as owned by something besides the leaves that map them: they stay in use at a count of zero.
    pub fn hold(&self, frames: FrameRange) {
        self.each_block(frames, |block, start, count| {
            block.held.insert_run(start, count);
            touch(block, start, count);
        });
    }

    /// Gives up the ownership that [`Self::hold`] took. Frames that no leaf maps are free at once, the others when their
    /// last leaf goes. How many frames became free.
    ///
    /// # Safety
    /// The caller holds the frames, and refers to them no more afterwards; no value owns them (invariant 1).
    pub unsafe fn release(&self, frames: FrameRange) -> u64 {
        self.release_held(frames)
    }

    pub(in crate::page_alloc) fn release_held(&self, frames: FrameRange) -> u64 {
        let mut counter = self.counter();
        frames.by_block().map(|piece| counter.release(piece)).sum()
    }

    fn each_block(&self, frames: FrameRange, change: impl Fn(&Block, usize, usize)) {
        for piece in frames.by_block() {
            let block = self.memmap.block(piece.start.block());
            block.lock(self.platform);
            change(block, piece.start.index_in_block(), piece.count as usize);
            block.unlock(self.platform);
        }
    }
}

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Gives up the holding of frames in one block.
    fn release(&mut self, piece: FrameRange) -> u64 {
        let block = self.enter(piece.start.block());
        let (start, count) = (piece.start.index_in_block(), piece.count as usize);
        debug_assert!(block.held.contains_run(start, count));
        block.held.remove_run(start, count);
        if block.state() == BlockState::Small {
            let mapped = block.small_maps(self.allocator.platform).nonzero();
            return self.add_freed(block, FrameMask::run(start, count).without(mapped));
        }
        self.free_folio_if_unmapped(piece.start, block, Contents::Unknown)
    }
}
