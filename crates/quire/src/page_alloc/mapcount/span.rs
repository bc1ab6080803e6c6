//! Counts down as the published teardown does: one lock hold for each span, one free for each folio.

use crate::addr::FrameRange;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{BlockState, FrameMask};
use crate::page_alloc::mapcount::counter::Counter;
use crate::page_alloc::store::count_slots::Promises;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Counts down one 4 KiB leaf for each frame of a part of a folio, and gives its lock back. Frees nothing
    /// before the `last` part: it adds frames of small blocks that became unmapped to `unmapped`.
    ///
    /// # Panics
    /// As [`Self::unmap`].
    ///
    /// # Safety
    /// As for [`Self::unmap`]. Before the last part the caller has another leaf of the folio to count down.
    pub(crate) unsafe fn unmap_part(&mut self, run: FrameRange, last: bool, unmapped: &mut FrameMask) {
        if last {
            let block = self.enter(run.start.block());
            self.add_freed(block, *unmapped);
            self.count_down_run(run);
        } else if self.counts.is_counted_as_published(run.start) {
            self.count_down_run(run);
        } else {
            run.by_block().for_each(|piece| self.keep_part(piece, unmapped));
        }
        self.unlock_block();
    }

    fn keep_part(&mut self, piece: FrameRange, unmapped: &mut FrameMask) {
        self.counts.frames().count(Stat::BlockLock, 1);
        if piece.count == 1
            && let Some(unused) = self.count_one_down(piece.start)
        {
            if unused {
                unmapped.insert(piece.start.index_in_block());
            }
            return;
        }
        let block = self.enter(piece.start.block());
        let (start, count) = (piece.start.index_in_block(), piece.count as usize);
        let (platform, promises) = (self.counts.platform(), Promises::new(self.counts.store()));
        if count == BLOCK_FRAMES && block.remove_table(&promises) {
            self.excess |= promises.excess.get();
            return;
        }
        let mut zeroed = FrameMask::EMPTY;
        let counted = match block.piece_lanes(self.counts.platform()) {
            Some(lanes) => lanes.decrement(start, count, &mut zeroed),
            None => block.remove_small(platform, &promises, start, count, &mut zeroed),
        };
        self.excess |= promises.excess.get();
        if counted.is_err() {
            self.unlock_block();
            panic!("{piece:?}: a frame was unmapped more often than mapped (invariant 5)");
        }
        if block.state() == BlockState::Small {
            *unmapped = unmapped.union(zeroed.without(block.held.load()));
        } else {
            self.count_small(piece.start, block, -(count as i64));
        }
    }
}
