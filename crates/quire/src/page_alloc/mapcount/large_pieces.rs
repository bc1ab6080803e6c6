//! Leaves of 2 MiB that map a block in small pieces: each counts as 512 leaves of 4 KiB.
//!
//! Pages of files are frames with a hold each ([`crate::filemap`]). Where 2 MiB of them stand in one block in
//! order, one leaf maps them, and counts in the block's lanes as the small leaves that it replaces. So leaf
//! and table replace each other without a change of any count; each frame's count is exact; and no frame is
//! free while the leaf maps it. A block stays in small pieces as long as any of its frames is in use.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order, PageSize};
use crate::limits::BLOCK_FRAMES;
use crate::page_alloc::mapcount::counter::{CountError, Counter};
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Counts one more leaf of 2 MiB or 1 GiB that maps the folio at `frame`, as [`Self::map_large`] does, or
    /// one of 2 MiB that maps the block in small pieces there.
    ///
    /// # Errors
    /// [`CountError::Prepare`], for blocks in small pieces only; nothing was counted, and no lock is held.
    pub(crate) fn map_leaf(&mut self, frame: Frame, size: PageSize) -> Result<(), CountError> {
        if size != PageSize::Size2M || !self.counts.frames().is_in_pieces(frame) {
            self.map_large(frame, size);
            return Ok(());
        }
        self.map(FrameRange::folio(frame, Order::BLOCK))?;
        self.note_large(1);
        Ok(())
    }

    /// Counts down a leaf that maps a block in small pieces; returns how many frames became free.
    pub(in crate::page_alloc) fn unmap_pieces(&mut self, frame: Frame) -> u64 {
        self.note_large(-1);
        self.count_down_run(FrameRange::folio(frame, Order::BLOCK))
    }

    /// A leaf that maps this frame becomes a table of small ones; returns whether that changes no count.
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
