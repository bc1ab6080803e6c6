//! Counts the leaf of a single page, which most faults map.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order};
use crate::memmap::LaneError;
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::state::touch;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::counter::CountError;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Counts one more 4 KiB leaf for a frame, by itself, as [`Counter::map`](super::counter::Counter::map)
    /// does. Sets the origin of a frame that was just allocated, if one is given and its block has a table of
    /// origins.
    ///
    /// # Errors
    /// As [`Counter::map`](super::counter::Counter::map).
    #[inline(always)]
    pub(crate) fn map_page(&self, frame: Frame, origin: Option<Origin>) -> Result<(), CountError> {
        let (block, index) = (self.frames().memmap.block(frame.block()), frame.index_in_block());
        let small = block.columns();
        #[cfg(feature = "published")]
        let small = small.filter(|_| !self.is_counted_as_published(frame));
        let Some(columns) = small else { return self.map_page_slow(frame, origin) };
        if let Some(origin) = origin
            && !columns.set_origin(index, Order::FRAME, origin.0)
        {
            return Err(CountError::Prepare { done: 0, at: frame });
        }
        block.lock(self.platform());
        // The frame is in use, so its block stays in small pieces.
        let counted = block
            .piece_lanes(self.platform())
            .map_or(Err(LaneError::Full), |lanes| lanes.increment(index, 1));
        if counted == Ok(true) {
            touch(block, index, 1);
        }
        block.unlock(self.platform());
        counted.map(drop).map_err(|_| CountError::Prepare { done: 0, at: frame })
    }

    #[cold]
    #[inline(never)]
    fn map_page_slow(&self, frame: Frame, origin: Option<Origin>) -> Result<(), CountError> {
        if let Some(origin) = origin
            && !self.frames().set_origin(frame, Order::FRAME, origin)
        {
            return Err(CountError::Prepare { done: 0, at: frame });
        }
        self.counter().map(FrameRange::new(frame, 1))
    }
}
