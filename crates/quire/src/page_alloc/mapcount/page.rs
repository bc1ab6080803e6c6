//! Counts the leaf of a single page, which most faults map.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::page_alloc::frames::state::touch;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::counter::CountError;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Counts one more 4 KiB leaf for a frame, by itself, as [`Counter::map`](super::counter::Counter::map) does.
    ///
    /// # Errors
    /// As [`Counter::map`](super::counter::Counter::map).
    #[inline]
    pub(crate) fn map_page(&self, frame: Frame) -> Result<(), CountError> {
        #[cfg(feature = "published")]
        if self.is_counted_as_published(frame) {
            return self.counter().map(FrameRange::new(frame, 1));
        }
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform());
        let Some(lanes) = block.area_lanes() else {
            block.unlock(self.platform());
            return self.counter().map(FrameRange::new(frame, 1));
        };
        let counted = lanes.increment(index, 1);
        if counted == Ok(true) {
            touch(block, index, 1);
        }
        block.unlock(self.platform());
        counted.map(drop).map_err(|_| CountError::Prepare { done: 0, at: frame })
    }
}
