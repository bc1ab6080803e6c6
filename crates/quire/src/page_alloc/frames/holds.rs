//! Holds: owners of frames besides the leaves that map them, such as the page cache and pools.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::memmap::{BlockState, FrameMask};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::state::touch;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// Gives frames an owner besides the leaves that map them: they stay in use at a count of zero.
    pub fn hold(&self, frames: FrameRange) {
        for piece in frames.by_block() {
            let block = self.memmap.block(piece.start.block());
            let (start, count) = (piece.start.index_in_block(), piece.count as usize);
            block.lock(self.platform);
            block.held.insert_run(start, count);
            touch(block, start, count);
            block.unlock(self.platform);
        }
    }

    /// Whether the block of a frame is in small pieces, and all its frames are held. A hint.
    pub(crate) fn is_block_held(&self, frame: Frame) -> bool {
        let block = self.memmap.get_around(frame);
        block.is_some_and(|block| block.state() == BlockState::Small && block.held.load() == FrameMask::ALL)
    }

    /// Whether something besides leaves owns the frame.
    pub fn is_held(&self, frame: Frame) -> bool {
        self.memmap.get_around(frame).is_some_and(|block| block.held.contains(frame.index_in_block()))
    }
}
