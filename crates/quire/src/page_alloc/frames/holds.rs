//! Holds: what owns frames besides the leaves that map them, as the page cache and pools do.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::state::touch;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// Marks frames as owned by something besides the leaves that map them: they stay in use at a count of zero.
    pub fn hold(&self, frames: FrameRange) {
        self.each_block(frames, |block, start, count| {
            block.held.insert_run(start, count);
            touch(block, start, count);
        });
    }

    fn each_block(&self, frames: FrameRange, change: impl Fn(&Block, usize, usize)) {
        for piece in frames.by_block() {
            let block = self.memmap.block(piece.start.block());
            block.lock(self.platform);
            change(block, piece.start.index_in_block(), piece.count as usize);
            block.unlock(self.platform);
        }
    }

    /// Whether the block of a frame is one in small pieces of which something besides leaves owns every frame. A hint.
    pub(crate) fn is_block_held(&self, frame: Frame) -> bool {
        let block = self.memmap.get(frame.block());
        block.is_some_and(|block| block.state() == BlockState::Small && block.held.load() == FrameMask::ALL)
    }

    /// Whether something besides leaves owns the frame.
    pub fn is_held(&self, frame: Frame) -> bool {
        self.memmap.get(frame.block()).is_some_and(|block| block.held.contains(frame.index_in_block()))
    }
}
