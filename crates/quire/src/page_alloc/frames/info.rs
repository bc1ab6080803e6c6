//! What the frame with a given number is, for walkers that own no frame.
//!
//! A walker asks here where there are no descriptors to read without a lock ([`crate::memmap`]). The answer
//! was true at one moment of the call: it is read from a record under the record's lock. Records are never
//! freed or moved, and frame descriptors are read only while the lock keeps their block in small pieces. So a
//! walker is safe whatever happens to the frame.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::arch::expect_changes;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, COUNTS_AT, DescriptorFlags};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::bad::{is_lost, is_reserved, state_outside};
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::request::gfp::Mobility;
use crate::platform::FramePlatform;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameInfo {
    /// It is not memory that the manager was given.
    NotMemory,
    /// It holds the manager's tables, or descriptors.
    Metadata,
    /// It is free.
    Free,
    /// It went bad, and is never handed out again. In a folio of whole blocks it is in use as long as that.
    Bad,
    /// It belongs to a folio in use.
    InUse {
        /// The folio's first frame.
        head: Frame,
        /// How many frames the folio has.
        frames: u64,
        /// Whether the folio belongs to a pool of huge pages.
        huge: bool,
    },
    /// Its folio of several blocks was being made or split at this moment.
    Changing,
}

impl<P: FramePlatform> Frames<'_, P> {
    /// What this frame is. The answer may be stale at return, unless the caller keeps the frame in use.
    pub fn frame_info(&self, frame: Frame) -> FrameInfo {
        let Some(block) = self.memmap.get_around(frame) else { return FrameInfo::NotMemory };
        block.lock(self.platform);
        let state = block.state();
        let info = match state {
            BlockState::Absent => FrameInfo::NotMemory,
            BlockState::Metadata => FrameInfo::Metadata,
            BlockState::Whole | BlockState::Listed => FrameInfo::Free,
            BlockState::Small => self.in_small_pieces(block, frame),
            BlockState::Folio => folio_at(block, frame.block().first_frame()),
            BlockState::FolioTail => FrameInfo::Changing,
        };
        let order = block.order.load(Ordering::Relaxed);
        block.unlock(self.platform);
        if state != BlockState::FolioTail || order <= Order::BLOCK.get() {
            return info;
        }
        // Only one lock of a rank at a time, so the head's record says whether it is still the head.
        let number = head_of(frame.block(), order);
        let head = self.memmap.block(number);
        head.lock(self.platform);
        let whole = head.state() == BlockState::Folio && head.order.load(Ordering::Relaxed) == order;
        let info = if whole { folio_at(head, number.first_frame()) } else { FrameInfo::Changing };
        head.unlock(self.platform);
        info
    }

    /// Whether a frame's user has set a flag in its descriptor. Of a frame without user the descriptor is
    /// stale, and so it is of a movable one in a block that changed over: the answer may be wrong then. In
    /// blocks that serve movable requests none is read.
    pub(crate) fn descriptor_has(&self, frame: Frame, flag: DescriptorFlags) -> bool {
        let Some(block) = self.memmap.get_around(frame) else { return false };
        block.lock(self.platform);
        let own = block.columns().filter(|_| block.mobility() != Mobility::Movable as u8);
        let row = own.and_then(|columns| columns.row(frame.index_in_block()));
        let has = row.is_some_and(|descriptor| descriptor.has(flag));
        block.unlock(self.platform);
        has
    }

    /// [`Self::frame_info`] for a block in small pieces. Under its lock.
    pub(in crate::page_alloc) fn in_small_pieces(&self, block: &Block, frame: Frame) -> FrameInfo {
        let index = frame.index_in_block();
        if !block.used.contains(index) {
            return FrameInfo::Free;
        }
        let Some(columns) = block.columns() else { return FrameInfo::Metadata };
        if is_lost(block, index) {
            return FrameInfo::Bad;
        }
        if is_reserved(block, index) {
            return FrameInfo::Metadata;
        }
        let heads = block.heads.load();
        let Some(start) = heads.previous_set(index) else { return FrameInfo::Metadata };
        if columns.state(start).is_free() {
            return FrameInfo::Free;
        }
        let next = heads.next_set(index + 1).unwrap_or(BLOCK_FRAMES);
        let is_part = |at: usize| block.used.contains(at) && state_outside(block, at).is_none();
        let end = (index..next).find(|&at| !is_part(at)).unwrap_or(next);
        if !(start..index).all(is_part) {
            return FrameInfo::Metadata;
        }
        let head = frame.block().first_frame().add(start as u64);
        FrameInfo::InUse { head, frames: (end - start) as u64, huge: false }
    }

    /// Prefetches the counts of a run of frames in one block, which the caller is about to change.
    #[inline]
    pub(crate) fn expect_counts(&self, frames: FrameRange) {
        let number = frames.start.block();
        if let Some(block) = self.memmap.get(number) {
            expect_changes(core::ptr::from_ref(block).cast(), size_of::<Block>());
            // A block in small pieces has its counts here; in other blocks the prefetch is harmless.
            let columns = core::ptr::from_ref(self.memmap.columns_of(number)).cast::<u8>();
            let counts = columns.wrapping_add(COUNTS_AT + frames.start.index_in_block());
            expect_changes(counts.cast_mut(), frames.count as usize);
        }
    }
}

/// A folio of whole blocks, by its first block. Under its lock.
fn folio_at(block: &Block, head: Frame) -> FrameInfo {
    let frames = 1 << block.order.load(Ordering::Relaxed);
    let huge = block.held.contains(0) && block.folio().has(DescriptorFlags::HUGE);
    FrameInfo::InUse { head, frames, huge }
}
