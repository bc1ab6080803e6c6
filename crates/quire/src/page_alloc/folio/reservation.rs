//! Block reservations: a block in small pieces whose frames one task takes one after the other.
//!
//! No other task has a frame of the block before it was taken. So a frame of it that goes bad is lost at once, as a free
//! one is, and the task is told when it comes to take it. The state of such a frame says so
//! ([`FrameState::UNCLAIMED`]): of other frames that are neither mapped nor held the allocator does not know which task
//! is about to use them.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{FrameMask, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::owned::Folio;
use crate::platform::FramePlatform;

/// A block in small pieces, which belongs to the holder of this value, but for what was taken.
#[must_use = "frames of a reservation that is dropped stay in use for good"]
#[derive(Debug)]
pub struct BlockReservation {
    block: Frame,
    /// Frames that were taken. Their owners may have freed them since.
    taken: FrameMask,
}

impl BlockReservation {
    /// The frame at a place, which counts from the block's start, or that of another one.
    pub const fn frame(&self, place: u64) -> Frame {
        self.block.add(place % BLOCK_FRAMES as u64)
    }

    /// Whether the frame at a place was taken.
    pub fn is_taken(&self, place: u64) -> bool {
        self.taken.contains((place % BLOCK_FRAMES as u64) as usize)
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Reserves the frames of a folio of order 9. Their descriptors stand elsewhere, in 1/64 of its size. `None`, and the
    /// folio is free again, when there is no memory for the descriptors or some of the folio went bad.
    pub fn reserve_block(&self, folio: Folio) -> Option<BlockReservation> {
        if self.split_in_use(folio.frame(), Order::FRAME).is_err() {
            let freed = self.free(folio);
            debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
            return None;
        }
        let start = folio.into_raw();
        let block = self.memmap.block(start.block());
        block.lock(self.platform);
        block.area().inspect(|area| area.set_states(0, BLOCK_FRAMES, FrameState::UNCLAIMED));
        block.unlock(self.platform);
        Some(BlockReservation { block: start, taken: FrameMask::EMPTY })
    }

    /// Takes some frames for a file, and holds them; none, if one of them went bad. Whether it did.
    pub fn take_reserved(&self, reservation: &mut BlockReservation, wanted: FrameMask) -> bool {
        debug_assert!(wanted.intersection(reservation.taken).is_empty(), "a frame is taken once");
        let block = self.memmap.block(reservation.block.block());
        block.lock(self.platform);
        let held = block.held.load();
        // Of frames that were not taken only lost ones are held.
        let good = held.intersection(wanted).is_empty();
        if good {
            block.held.store(held.union(wanted));
            for (start, count) in wanted.runs() {
                block.area().inspect(|area| area.set_states(start, count, FrameState::UNKNOWN));
                let frames = FrameRange::new(reservation.block.add(start as u64), count as u64);
                self.give_to_file(frames);
            }
            reservation.taken = reservation.taken.union(wanted);
        }
        block.unlock(self.platform);
        good
    }

    /// Frees what was not taken.
    pub fn free_reserved(&self, reservation: BlockReservation) {
        let (number, rest) = (reservation.block.block(), FrameMask::ALL.without(reservation.taken));
        if rest.is_empty() {
            return;
        }
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let rest = rest.without(block.held.load());
        for (start, count) in rest.runs() {
            self.note_freed(FrameRange::new(reservation.block.add(start as u64), count as u64));
        }
        self.store_put(number, block, rest);
    }
}
