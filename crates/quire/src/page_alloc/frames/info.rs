//! What the frame with some number is: for walkers by frame number, which own no frame.
//!
//! Where there are no descriptors to look at without a lock ([`crate::memmap`]), a walker asks here. It gets an
//! answer that was true at one moment during the call: that of the record which says it, under the record's lock. No
//! record is given back or moved, and descriptors of frames are looked at only while the lock keeps their block in
//! small pieces, so a walker is safe at every moment, whatever becomes of the frame.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::arch::expect_changes;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, COUNTS_AT, DescriptorFlags};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::bad::is_lost;
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::request::gfp::Mobility;
use crate::platform::FramePlatform;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameInfo {
    /// No memory that the manager was given.
    NotMemory,
    /// It holds the manager's tables, or descriptors.
    Metadata,
    /// It is free.
    Free,
    /// It went bad, and is never handed out again. One that went bad in a folio of whole blocks is in use as long as
    /// that.
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
    /// Its folio of several blocks was being made, or taken apart, at this moment.
    Changing,
}

impl<P: FramePlatform> Frames<'_, P> {
    /// What the frame with this number is. It may be something else when the call returns, unless the caller keeps it
    /// in use.
    pub fn frame_info(&self, frame: Frame) -> FrameInfo {
        let Ok(number) = u32::try_from(frame.0 / Order::BLOCK.frames()) else { return FrameInfo::NotMemory };
        let Some(block) = self.memmap.get(BlockNumber(number)) else { return FrameInfo::NotMemory };
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
        // One lock of a rank at a time: the head's record says whether it is the head still.
        let number = head_of(frame.block(), order);
        let head = self.memmap.block(number);
        head.lock(self.platform);
        let whole = head.state() == BlockState::Folio && head.order.load(Ordering::Relaxed) == order;
        let info = if whole { folio_at(head, number.first_frame()) } else { FrameInfo::Changing };
        head.unlock(self.platform);
        info
    }

    /// Whether the descriptor of a frame has a flag that the frame's user has set. Of others it is whatever was left
    /// there; of those that may be moved, which have none, it is not looked at.
    pub(crate) fn descriptor_has(&self, frame: Frame, flag: DescriptorFlags) -> bool {
        let Some(block) = self.memmap.get(frame.block()) else { return false };
        block.lock(self.platform);
        let own = block.state() == BlockState::Small && block.mobility() != Mobility::Movable as u8;
        let has = own && self.memmap.descriptor(frame).has(flag);
        block.unlock(self.platform);
        has
    }

    /// A frame of a block in small pieces. Under its lock.
    pub(in crate::page_alloc) fn in_small_pieces(&self, block: &Block, frame: Frame) -> FrameInfo {
        let index = frame.index_in_block();
        if !block.used.contains(index) {
            return FrameInfo::Free;
        }
        let Some(area) = block.area() else { return FrameInfo::Metadata };
        if is_lost(block, index) {
            return FrameInfo::Bad;
        }
        // The block's own descriptors stand between folios, and start nothing.
        let own = self.own_area(frame.block(), block);
        let is_area = |at: usize| own.contains(at);
        let heads = block.heads.load();
        let Some(start) = heads.previous_set(index).filter(|_| !is_area(index)) else {
            return FrameInfo::Metadata;
        };
        if area.state(start).is_free() {
            return FrameInfo::Free;
        }
        let next = heads.next_set(index + 1).unwrap_or(BLOCK_FRAMES);
        let end = (index..next)
            .find(|&at| !block.used.contains(at) || is_area(at) || is_lost(block, at))
            .unwrap_or(next);
        if !(start..index).all(|at| block.used.contains(at) && !is_area(at) && !is_lost(block, at)) {
            return FrameInfo::Metadata;
        }
        let head = frame.block().first_frame().add(start as u64);
        FrameInfo::InUse { head, frames: (end - start) as u64, huge: false }
    }

    /// Says that counts of a run of frames in one block are about to be changed, so that they are at hand by then. A hint.
    #[inline]
    pub(crate) fn expect_counts(&self, frames: FrameRange) {
        let number = frames.start.block();
        if let Some(block) = self.memmap.get(number) {
            expect_changes(core::ptr::from_ref(block).cast(), size_of::<Block>());
            // Where they stand in a block of small pieces; of others it is some memory that is not needed.
            let area = self.platform.direct_map(number.first_frame().addr());
            let at = COUNTS_AT + frames.start.index_in_block();
            expect_changes(area.wrapping_add(at), frames.count as usize);
        }
    }
}

/// The folio of whole blocks that starts at a block. Under its lock.
fn folio_at(block: &Block, head: Frame) -> FrameInfo {
    let frames = 1 << block.order.load(Ordering::Relaxed);
    let huge = block.held.contains(0) && block.folio().has(DescriptorFlags::HUGE);
    FrameInfo::InUse { head, frames, huge }
}
