//! Which frames went bad, and the marks that say so (`folio/bad.rs` decides what to do about a frame).
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::memmap::{Block, BlockState, FrameMask, FrameState};
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::{Frames, MemMap};
use crate::platform::{Event, FramePlatform};
use crate::stats::Stat;

impl<P: FramePlatform> Frames<'_, P> {
    /// How many frames went bad.
    #[inline]
    pub fn bad_frames(&self) -> u64 {
        self.bad.load(Ordering::SeqCst)
    }

    /// Loses a frame that the caller holds, that no leaf maps, and that is a folio by itself.
    pub(crate) fn bury(&self, frame: Frame) {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        debug_assert!(block.held.contains(index) && block.folio_frames(index) == 1);
        block.heads.remove_run(index, 1);
        self.lose(block, index);
        block.unlock(self.platform);
        self.platform.event(Event::BadMemory { frame });
    }

    /// Whether a frame is known to be bad.
    pub fn is_bad(&self, frame: Frame) -> bool {
        let Some(block) = self.memmap.get_around(frame) else { return false };
        let index = frame.index_in_block();
        block.lock(self.platform);
        let bad = match block.state() {
            BlockState::Small => is_lost(block, index),
            BlockState::Folio | BlockState::FolioTail | BlockState::Listed => block.used.contains(index),
            _ => false,
        };
        block.unlock(self.platform);
        bad
    }

    /// Whether a frame of the folio of order 9 or more that starts at `frame` is marked. The caller owns the
    /// folio, or keeps it from being split. A task that maps a folio asks after its leaf is counted.
    pub fn has_bad(&self, frame: Frame) -> bool {
        self.bad_frames() > 0 && has_marks(&self.memmap, frame)
    }

    /// Whether a frame of the block of `frame`, which is part of a folio of whole blocks, is marked.
    pub(crate) fn has_bad_in_block(&self, frame: Frame) -> bool {
        !self.memmap.block(frame.block()).used.load().is_empty()
    }

    /// Whether a held frame of a block in small pieces is not for users: descriptors, memory that the manager
    /// was never given, and folios that it holds for itself. Under the block's lock.
    pub(in crate::page_alloc) fn is_managers(&self, frame: Frame, block: &Block) -> bool {
        let (Some(columns), index) = (block.columns(), frame.index_in_block()) else { return true };
        if is_reserved(block, index) {
            return true;
        }
        // Any other held frame belongs to the folio that starts at or before it.
        let head = block.heads.load().previous_set(index);
        head.is_none_or(|head| Origin::at(columns, head).is_managers())
    }

    /// Whether the folio around a frame in use is on a list, or on its way back.
    pub(in crate::page_alloc) fn is_listed(&self, block: &Block, index: usize, state: FrameState) -> bool {
        let head = if block.heads.contains(index) { None } else { block.heads.load().previous_set(index) };
        let of_head = head.and_then(|head| block.columns().map(|columns| columns.state(head)));
        of_head.unwrap_or(state).is_free()
    }

    /// Makes a used and held frame a bad one. Under its block's lock.
    pub(in crate::page_alloc) fn lose(&self, block: &Block, index: usize) {
        block.capacity.fetch_sub(1, Ordering::Relaxed);
        block.columns().inspect(|columns| columns.set_state(index, FrameState::BAD));
        self.note_bad(1);
    }

    pub(in crate::page_alloc) fn note_bad(&self, frames: i64) {
        if frames != 0 {
            self.bad.fetch_add(frames as u64, Ordering::SeqCst);
            self.change(Stat::NrHardwareCorrupted, frames);
        }
    }

    /// Takes the mark of a frame off, unless it is gone: the folio was freed, and the frame lost, or it was split
    /// while leaves mapped the frame. Returns whether it did.
    pub(in crate::page_alloc) fn unmark(&self, frame: Frame) -> bool {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        let marked =
            matches!(block.state(), BlockState::Folio | BlockState::FolioTail) && block.used.contains(index);
        if marked {
            block.used.remove_run(index, 1);
            self.note_bad(-1);
        }
        block.unlock(self.platform);
        marked
    }

    /// Marks a frame of a folio of whole blocks again.
    pub fn mark_again(&self, frame: Frame) {
        let (block, index) = (self.memmap.block(frame.block()), frame.index_in_block());
        block.lock(self.platform);
        if matches!(block.state(), BlockState::Folio | BlockState::FolioTail) && !block.used.contains(index) {
            block.used.insert_run(index, 1);
            self.note_bad(1);
        }
        block.unlock(self.platform);
    }

    /// Settles the marks of a folio of order 9 that is split: frames of `lost`, which no leaf maps, are lost
    /// now, and the marks of `mapped` are forgotten. Under its block's lock.
    pub(in crate::page_alloc) fn split_marks(&self, block: &Block, lost: FrameMask, mapped: FrameMask) {
        for (start, count) in lost.runs() {
            block.heads.remove_run(start, count);
            block.held.insert_run(start, count);
            block.columns().inspect(|columns| columns.set_states(start, count, FrameState::BAD));
        }
        block.capacity.fetch_sub(lost.count() as u16, Ordering::Relaxed);
        self.note_bad(-(mapped.count() as i64));
    }

    /// Takes the marks off all frames of a block that is part of a folio; which frames had one.
    pub(crate) fn take_marks(&self, number: BlockNumber) -> FrameMask {
        let block = self.memmap.block(number);
        block.lock(self.platform);
        let part = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let marks = if part { block.used.load() } else { FrameMask::EMPTY };
        if part {
            block.used.store(FrameMask::EMPTY);
            self.note_bad(-(marks.count() as i64));
        }
        block.unlock(self.platform);
        marks
    }
}

/// [`Frames::has_bad`] for a caller that has the memory map alone.
pub(crate) fn has_marks(memmap: &MemMap, frame: Frame) -> bool {
    let order = memmap.block(frame.block()).order.load(Ordering::Relaxed).max(Order::BLOCK.get());
    let mut blocks = (0..1 << (order - Order::BLOCK.get())).map(|at| frame.block().add(at));
    blocks.any(|number| !memmap.block(number).used.load().is_empty())
}

/// Whether a frame of a block in small pieces is not the allocator's to hand out: it holds a table of
/// a block, or is no memory. Under the block's lock.
pub(in crate::page_alloc) fn is_reserved(block: &Block, index: usize) -> bool {
    state_outside(block, index) == Some(FrameState::RESERVED)
}

/// Whether a frame of a block in small pieces is lost. Under the block's lock.
pub(in crate::page_alloc) fn is_lost(block: &Block, index: usize) -> bool {
    state_outside(block, index) == Some(FrameState::BAD)
}

/// The state of a used frame of a block in small pieces that belongs to no folio: such a frame is held and
/// starts no folio, and is reserved or lost.
#[inline]
pub(in crate::page_alloc) fn state_outside(block: &Block, index: usize) -> Option<FrameState> {
    let inside = !block.held.contains(index) || block.heads.contains(index);
    let state = block.columns().filter(|_| !inside)?.state(index);
    matches!(state, FrameState::BAD | FrameState::RESERVED).then_some(state)
}
