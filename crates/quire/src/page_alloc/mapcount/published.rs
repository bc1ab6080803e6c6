//! Published ways to count leaves of folios of whole blocks, for comparison; small blocks count as ever.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, PageSize};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::frames::scheme::{CountScheme, PAGES_MAPPED};
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::mapcount::counter::{CountError, Counter};
use crate::page_alloc::request::gfp::Contents;
use crate::platform::FramePlatform;

impl<'a, P: FramePlatform> Counter<'a, '_, P> {
    /// Counts a run of 4 KiB leaves: those of folios of whole blocks as published, which needs no lock.
    #[inline(never)]
    pub(in crate::page_alloc) fn map_as_published(&mut self, run: FrameRange) -> Result<(), CountError> {
        let mut done = 0;
        for piece in run.by_block() {
            if !self.counts.frames().is_of_whole_blocks(piece.start) {
                self.map_densely(piece).map_err(|CountError::Prepare { done: more, at }| {
                    CountError::Prepare { done: done + more, at }
                })?;
                done += piece.count;
                continue;
            }
            self.unlock_block();
            let block = self.counts.frames().memmap.block(piece.start.block());
            let (start, count) = (piece.start.index_in_block(), piece.count as usize);
            if self.counts.frames().scheme == CountScheme::PerFrame
                && !block.count_cells_up(self.counts.platform(), start, count)
            {
                return Err(CountError::Prepare { done, at: piece.start });
            }
            self.change_head(piece.start, block, piece.count as i64, piece.count as i64);
            done += piece.count;
        }
        Ok(())
    }

    /// Counts a run down; returns how many frames became free.
    #[inline(never)]
    pub(in crate::page_alloc) fn unmap_as_published(&mut self, run: FrameRange) -> u64 {
        let mut freed = 0;
        for piece in run.by_block() {
            if !self.counts.frames().is_of_whole_blocks(piece.start) {
                freed += self.unmap_in_block(piece);
                continue;
            }
            self.unlock_block();
            let block = self.counts.frames().memmap.block(piece.start.block());
            if self.counts.frames().scheme == CountScheme::PerFrame {
                let (start, count) = (piece.start.index_in_block(), piece.count as usize);
                block.count_cells_down(self.counts.platform(), start, count);
            }
            if self.change_head(piece.start, block, -(piece.count as i64), -(piece.count as i64)) == 0 {
                freed += self.free_if_unmapped(piece.start, Contents::Unknown);
            }
        }
        freed
    }

    /// Counts a leaf of 2 MiB or 1 GiB.
    pub(in crate::page_alloc) fn map_large_as_published(&mut self, frame: Frame, size: PageSize) {
        self.unlock_block();
        let block = self.counts.frames().memmap.block(frame.block());
        if self.counts.frames().scheme == CountScheme::PerFrame {
            let whole = block.order.load(Ordering::Relaxed) == size.order().get();
            // Without cells for its frames, it has never been mapped in pieces.
            if whole || !block.count_cells_up(self.counts.platform(), 0, BLOCK_FRAMES) {
                let maps = if size == PageSize::Size1G { &block.gigantic_maps } else { &block.large_maps };
                maps.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.change_head(frame, block, 1, size.frames() as i64);
        FrameState::UNKNOWN.put(block.folio_state_cell());
    }

    /// Counts a leaf of 2 MiB in place of 512 leaves of 4 KiB.
    pub(in crate::page_alloc) fn merge_as_published(&mut self, frame: Frame) {
        self.unlock_block();
        let block = self.counts.frames().memmap.block(frame.block());
        self.change_head(frame, block, 1 - BLOCK_FRAMES as i64, 0);
        FrameState::UNKNOWN.put(block.folio_state_cell());
    }

    /// Counts a large leaf down; returns how many frames became free.
    pub(in crate::page_alloc) fn unmap_large_as_published(
        &mut self,
        frame: Frame,
        size: PageSize,
        contents: Contents,
    ) -> u64 {
        self.unlock_block();
        let block = self.counts.frames().memmap.block(frame.block());
        if self.counts.frames().scheme == CountScheme::PerFrame {
            let maps = if size == PageSize::Size1G { &block.gigantic_maps } else { &block.large_maps };
            let one = |maps: u32| maps.checked_sub(1);
            if maps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_err() {
                block.count_cells_down(self.counts.platform(), 0, BLOCK_FRAMES);
            }
        }
        let left = self.change_head(frame, block, -1, -(size.frames() as i64));
        if left > 0 { 0 } else { self.free_if_unmapped(frame, contents) }
    }

    /// Changes the folio's number of leaves, and returns it. Those leaves map so many `pages`.
    #[inline]
    fn change_head(&self, frame: Frame, block: &Block, leaves: i64, pages: i64) -> u64 {
        let order = block.order.load(Ordering::Relaxed);
        let maps = &self.counts.frames().memmap.block(head_of(frame.block(), order)).folio_maps;
        let scheme = self.counts.frames().scheme;
        if scheme == CountScheme::TotalMapped {
            let change = (pages as u64).wrapping_mul(PAGES_MAPPED).wrapping_add(leaves as u64);
            return scheme.leaves(maps.fetch_add(change, Ordering::AcqRel).wrapping_add(change));
        }
        if scheme != CountScheme::HeadOnlyByLeaf {
            return maps.fetch_add(leaves as u64, Ordering::AcqRel).wrapping_add(leaves as u64);
        }
        let one = leaves.signum() as u64;
        (0..leaves.unsigned_abs()).fold(0, |_, _| maps.fetch_add(one, Ordering::AcqRel).wrapping_add(one))
    }

    fn free_if_unmapped(&mut self, frame: Frame, contents: Contents) -> u64 {
        let block = self.enter(frame.block());
        self.count_folio_down(frame, block, 0, contents)
    }
}

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Whether a published scheme counts the leaves of this frame.
    #[inline]
    pub(in crate::page_alloc) fn is_counted_as_published(&self, frame: Frame) -> bool {
        self.frames().scheme != CountScheme::Dense && self.frames().is_of_whole_blocks(frame)
    }

    /// Whether a published scheme counts some of these frames. A run can cross from one folio to the next, which counts in
    /// another way.
    #[inline]
    pub(in crate::page_alloc) fn has_parts_counted_as_published(&self, run: FrameRange) -> bool {
        self.is_counted_as_published(run.start)
            || self.frames().scheme != CountScheme::Dense
                && run.start.index_in_block() as u64 + run.count > BLOCK_FRAMES as u64
    }

    /// The one count of the folio of whole blocks around a frame; `None` where each frame has its own.
    pub(in crate::page_alloc) fn head_count(&self, frame: Frame, block: &Block) -> Option<u64> {
        let whole = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let (order, scheme) = (block.order.load(Ordering::Relaxed), self.frames().scheme);
        let head = || self.frames().memmap.block(head_of(frame.block(), order));
        (whole && scheme.is_head_only())
            .then(|| scheme.count_of_a_frame(head().folio_maps.load(Ordering::Acquire), 1 << order))
    }
}
