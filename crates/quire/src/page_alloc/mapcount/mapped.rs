//! Reads how leaves map a frame.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState};
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// How many leaves of any size map the frame.
    pub fn mapcount(&self, frame: Frame) -> u64 {
        let Some(block) = self.frames().memmap.get_around(frame) else { return 0 };
        block.lock(self.platform());
        let small = block.small_maps(self.platform()).get(frame.index_in_block());
        let large = self.large_leaves(frame, block);
        block.unlock(self.platform());
        u64::from(small) + large
    }

    /// How many leaves of 4 KiB map the frame of this block that most of them map.
    pub(crate) fn most_small_leaves(&self, frame: Frame) -> u32 {
        let block = self.frames().memmap.block(frame.block());
        block.lock(self.platform());
        let small = block.small_maps(self.platform());
        let most = (0..BLOCK_FRAMES).map(|index| small.get(index)).max();
        block.unlock(self.platform());
        most.unwrap_or(0)
    }

    /// Of the 64 aligned frames around `frame`, those that one 4 KiB leaf and no larger leaf maps, and that
    /// are not held. Bit 0 is the first.
    pub fn mapped_once(&self, frame: Frame) -> u64 {
        let Some(block) = self.frames().memmap.get_around(frame) else { return 0 };
        let group = frame.index_in_block() / 64;
        block.lock(self.platform());
        let ones = block.small_maps(self.platform()).ones(group);
        let (held, large) = (block.held.word(group), self.large_leaves(frame, block));
        block.unlock(self.platform());
        if large == 0 { ones & !held } else { 0 }
    }

    /// Whether the only leaf that maps any of the block of `frame` is one of 2 MiB, and it is not held.
    pub(crate) fn is_block_mapped_once(&self, frame: Frame) -> bool {
        let Some(block) = self.frames().memmap.get_around(frame) else { return false };
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

    /// Whether the only leaf that maps any of the folio at `frame` is one of 1 GiB, and it is not held.
    pub(crate) fn is_gigantic_mapped_once(&self, frame: Frame) -> bool {
        let Some(block) = self.frames().memmap.get_around(frame) else { return false };
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
