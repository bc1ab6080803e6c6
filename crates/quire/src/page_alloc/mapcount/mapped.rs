//! Reads how leaves map a frame.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::memmap::{Block, BlockState};
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// How many leaves of any size map the frame.
    pub fn mapcount(&self, frame: Frame) -> u64 {
        let Some(block) = self.frames().memmap.get(frame.block()) else { return 0 };
        block.lock(self.platform());
        let small = block.small_maps(self.platform()).get(frame.index_in_block());
        let large = self.large_leaves(frame, block);
        block.unlock(self.platform());
        u64::from(small) + large
    }

    /// Which of the 64 frames at a multiple of 64 around `frame` are mapped by one 4 KiB leaf, by no larger one, and held by
    /// nobody; the first in bit 0.
    pub fn mapped_once(&self, frame: Frame) -> u64 {
        let Some(block) = self.frames().memmap.get(frame.block()) else { return 0 };
        let group = frame.index_in_block() / 64;
        block.lock(self.platform());
        let ones = block.small_maps(self.platform()).ones(group);
        let (held, large) = (block.held.word(group), self.large_leaves(frame, block));
        block.unlock(self.platform());
        if large == 0 { ones & !held } else { 0 }
    }

    /// Whether one leaf of 2 MiB maps the block of `frame`, no other leaf maps any part of it, and it is not held.
    pub(crate) fn is_block_mapped_once(&self, frame: Frame) -> bool {
        let Some(block) = self.frames().memmap.get(frame.block()) else { return false };
        block.lock(self.platform());
        let small = block.small_maps(self.platform()).any();
        let head = match block.state() {
            BlockState::FolioTail => {
                self.frames().memmap.block(head_of(frame.block(), block.order.load(Ordering::Relaxed)))
            }
            _ => block,
        };
        let (held, large) = (!head.held.load().is_empty(), self.large_leaves(frame, block));
        block.unlock(self.platform());
        large == 1 && !small && !held
    }

    /// Whether one leaf of 1 GiB maps the folio that starts at `frame`, no other leaf maps any part of it, and it is
    /// not held.
    pub(crate) fn is_gigantic_mapped_once(&self, frame: Frame) -> bool {
        let Some(block) = self.frames().memmap.get(frame.block()) else { return false };
        block.lock(self.platform());
        let maps = block.folio_maps.load(Ordering::Acquire);
        let large = u64::from(block.gigantic_maps.load(Ordering::Relaxed));
        let folio = block.state() == BlockState::Folio && frame.is_aligned(Order::GIGANTIC);
        let held = !block.held.load().is_empty();
        block.unlock(self.platform());
        folio && (maps, large) == (1, 1) && !held
    }

    /// How many leaves of more than 4 KiB map the frame. Under its block's lock.
    pub(in crate::page_alloc) fn large_leaves(&self, frame: Frame, block: &Block) -> u64 {
        #[cfg(feature = "published")]
        if let Some(leaves) = self.head_count(frame, block) {
            return leaves;
        }
        let gigantic = match block.state() {
            BlockState::FolioTail if block.order.load(Ordering::Relaxed) == Order::GIGANTIC.get() => {
                let head = head_of(frame.block(), Order::GIGANTIC.get());
                self.frames().memmap.block(head).gigantic_maps.load(Ordering::Relaxed)
            }
            BlockState::Folio => block.gigantic_maps.load(Ordering::Relaxed),
            _ => 0,
        };
        u64::from(block.large_maps.load(Ordering::Relaxed)) + u64::from(gigantic)
    }
}
