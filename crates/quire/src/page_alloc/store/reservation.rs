//! A block in small pieces of which one task takes frame after frame.
//!
//! No other task has a frame of the block before it was taken. So a frame that goes bad is lost at once, as a
//! free one is, and the task learns of it when it takes the frame. The state [`FrameState::UNCLAIMED`] marks
//! it: of other unmapped, unheld frames the allocator does not know which task is about to use them.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{FrameMask, FrameState};
use crate::page_alloc::Store;
use crate::platform::FramePlatform;

/// A block in small pieces. All frames that were not taken belong to the holder of this value.
#[must_use = "frames of a reservation that is dropped stay in use for good"]
#[derive(Debug)]
pub struct BlockReservation {
    block: Frame,
    /// Taken frames. Their owners may have freed them since.
    taken: FrameMask,
}

impl BlockReservation {
    pub(in crate::page_alloc) const fn new(block: Frame) -> Self {
        Self { block, taken: FrameMask::EMPTY }
    }

    /// The frame at a place from the block's start, modulo the block's size.
    pub const fn frame(&self, place: u64) -> Frame {
        self.block.add(place % BLOCK_FRAMES as u64)
    }

    /// Whether the frame at a place was taken.
    pub(crate) fn is_taken(&self, place: u64) -> bool {
        self.taken.contains((place % BLOCK_FRAMES as u64) as usize)
    }
}

impl<P: FramePlatform> Store<'_, P> {
    /// Takes frames for a file and holds them, or none if one of them went bad; returns whether it did.
    pub(crate) fn take_reserved(&self, reservation: &mut BlockReservation, wanted: FrameMask) -> bool {
        debug_assert!(wanted.intersection(reservation.taken).is_empty(), "a frame is taken once");
        let block = self.frames.memmap.block(reservation.block.block());
        block.lock(self.frames.platform);
        let held = block.held.load();
        // Of the frames not yet taken, only lost ones are held.
        let good = held.intersection(wanted).is_empty();
        if good {
            block.held.store(held.union(wanted));
            for (start, count) in wanted.runs() {
                block.columns().inspect(|columns| columns.set_states(start, count, FrameState::UNKNOWN));
                let frames = FrameRange::new(reservation.block.add(start as u64), count as u64);
                let given = self.frames.give_to_file(frames);
                debug_assert!(given, "frames of a reservation have no family");
            }
            reservation.taken = reservation.taken.union(wanted);
        }
        block.unlock(self.frames.platform);
        good
    }

    /// Frees the frames that were not taken.
    pub(crate) fn free_reserved(&self, reservation: BlockReservation) {
        let (number, rest) = (reservation.block.block(), FrameMask::ALL.without(reservation.taken));
        if rest.is_empty() {
            return;
        }
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let rest = rest.without(block.held.load());
        for (start, count) in rest.runs() {
            self.frames.note_freed(FrameRange::new(reservation.block.add(start as u64), count as u64));
        }
        self.store_put(number, block, rest);
    }
}
