//! Counts one leaf of 2 MiB in place of 512 leaves of 4 KiB in one step.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{BlockState, FrameMask, FrameState};
#[cfg(feature = "published")]
use crate::page_alloc::frames::scheme::CountScheme;
use crate::page_alloc::mapcount::counter::Counter;
use crate::page_alloc::store::count_slots::Promises;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// Whether a whole table is counted in one step, and so can become a leaf.
    pub(crate) fn counts_by_table(&self) -> bool {
        #[cfg(feature = "published")]
        return matches!(
            self.counts.frames().scheme,
            CountScheme::Dense | CountScheme::HeadOnly | CountScheme::TotalMapped
        );
        #[cfg(not(feature = "published"))]
        true
    }

    /// Counts one leaf of 2 MiB in place of the 512 of 4 KiB that map the same frames, if these still are one
    /// folio or a part of one; returns whether they are. Frees nothing.
    ///
    /// # Panics
    /// As [`Self::unmap`].
    pub(crate) fn try_merge(&mut self, frame: Frame) -> bool {
        debug_assert!(frame.is_aligned(Order::BLOCK) && self.counts_by_table());
        let (block, leaves) = (self.enter(frame.block()), BLOCK_FRAMES as i64);
        if !matches!(block.state(), BlockState::Folio | BlockState::FolioTail) {
            return false;
        }
        #[cfg(feature = "published")]
        if self.counts.is_counted_as_published(frame) {
            self.merge_as_published(frame);
            return true;
        }
        block.large_maps.fetch_add(1, Ordering::Relaxed);
        let (platform, promises) = (self.counts.platform(), Promises::new(self.counts.store()));
        let mut unmapped = FrameMask::EMPTY;
        if !block.remove_table(&promises)
            && block.remove_small(platform, &promises, 0, BLOCK_FRAMES, &mut unmapped).is_err()
        {
            self.unlock_block();
            panic!("{frame:?}: a table was unmapped more often than mapped (invariant 5)");
        }
        self.excess |= promises.excess.get();
        FrameState::UNKNOWN.put(block.folio_state_cell());
        self.note_unused_slot(block);
        let in_record = self.counts.counts_in_record(frame, block);
        self.count_folio(frame, block, if in_record { 1 } else { 1 - leaves });
        true
    }
}
