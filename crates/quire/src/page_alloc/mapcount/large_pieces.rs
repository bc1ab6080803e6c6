//! Leaves of 2 MiB over a block in small pieces: each counts as 512 leaves of 4 KiB.
//!
//! Pages of files are frames with a hold each ([`crate::filemap`]). Where those of 2 MiB stand in one block in order, one leaf
//! maps them, and is counted in the lanes of the block as the small leaves are in whose place it stands. So it may become a
//! table of small leaves, and what was a table it, without a change of any count; each frame's count is exact; and no frame
//! is free while the leaf maps it. A block cannot stop being one in small pieces as long as any frame of it is in use.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order, PageSize};
use crate::limits::BLOCK_FRAMES;
use crate::page_alloc::mapcount::counter::{CountError, Counter};
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Counts one more leaf of 2 MiB or 1 GiB onto the folio at `frame`, as [`Self::map_large`] does, or one of 2 MiB onto the
    /// block in small pieces that begins there.
    ///
    /// # Errors
    /// [`CountError::Prepare`], of blocks in small pieces alone; nothing was counted, and the counter has given its lock back.
    pub(crate) fn map_leaf(&mut self, frame: Frame, size: PageSize) -> Result<(), CountError> {
        if size != PageSize::Size2M || !self.counts.frames().is_in_pieces(frame) {
            self.map_large(frame, size);
            return Ok(());
        }
        self.map(FrameRange::folio(frame, Order::BLOCK))?;
        self.note_large(1);
        Ok(())
    }

    /// Counts such a leaf of a block in small pieces down; how many frames became free.
    pub(in crate::page_alloc) fn unmap_pieces(&mut self, frame: Frame) -> u64 {
        self.note_large(-1);
        self.count_down_run(FrameRange::folio(frame, Order::BLOCK))
    }

    /// A leaf of 2 MiB onto this frame becomes a table of small ones; whether that changes no count.
    pub(crate) fn split_leaf(&mut self, frame: Frame, size: PageSize) -> bool {
        let same = size == PageSize::Size2M && self.counts.frames().is_in_pieces(frame);
        if same {
            self.note_large(-1);
        }
        same
    }

    fn note_large(&self, leaves: i64) {
        self.counts.frames().change(Stat::NrFilePmdMapped, leaves * BLOCK_FRAMES as i64);
    }
}
