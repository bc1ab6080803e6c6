//! Free memory that is known to be zero, so that nothing is cleared twice.
//!
//! What is free is *known to be zero* when it has been so since the machine was taken over, when it was cleared and given
//! back untouched ([`PageAllocator::free_zeroed`]), or when an idle CPU cleared it ([`PageAllocator::zero_ahead`]). It is as
//! free as all other memory: it is found by the same searches, counts as available, and who does not care takes it last.
//!
//! # Where it stands
//!
//! | the folio is | the mark is |
//! |---|---|
//! | a whole block in its pool | a bit of the pool |
//! | free in a block in small pieces | a bit of the block's map in its area, and a byte in its record that says whether there are any |
//! | on a per-CPU list | a bit of the state of its first frame |
//! | just handed out to somebody who asks | the same bit, until [`PageAllocator::alloc_maybe_zeroed`] has read it |
//!
//! In the store, marks belong to free frames only, so that a free need not look at them: whoever takes frames takes their
//! marks off. A list's magazine is written into a folio that was freed without a mark. A block that becomes whole again held
//! its descriptors, so nothing is known of it.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::folio::Folio;
use super::gfp::{Contents, Gfp, NodePolicy};
use super::pcp;
use super::search::Search;
use super::zone::Zone;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::{AllocError, FreeError};
use crate::memmap::{Block, FrameMask, FrameState};
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// What is remembered of memory that is zero, and what is made so in idle time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroes {
    /// Whether it is remembered that free memory is zero. Without, everything is cleared when it is handed out, as in Linux.
    pub remember: bool,
    /// Frames of whole blocks, for folios of order 9 and more, that [`PageAllocator::zero_ahead`] keeps ready; in all zones
    /// together, each of which has its share by its memory.
    pub blocks_ahead: u64,
    /// Frames of blocks in small pieces, for folios below order 9, that it keeps ready in each zone.
    pub pieces_ahead: u64,
    /// Whether every folio that is handed out as known to be zero is read, and the machine stopped if it is not. For debugging:
    /// it costs as much as clearing.
    pub verify: bool,
}

impl Default for Zeroes {
    /// Remembers, clears nothing ahead, and verifies in debug builds.
    fn default() -> Self {
        Self { remember: true, blocks_ahead: 0, pieces_ahead: 0, verify: cfg!(debug_assertions) }
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// As [`Self::alloc`], for memory that has to be zero before it is used: takes memory that is known to be so rather than
    /// other, and says whether it is.
    ///
    /// It repeats the common case of [`Self::alloc`] on purpose: that does not look at the state which it overwrites, and
    /// looking costs it a tenth (3.87 for 3.53 ns a pair).
    ///
    /// # Errors
    /// As [`Self::alloc`].
    ///
    /// # Panics
    /// When [`Zeroes::verify`] is set and a folio that is known to be zero is not.
    #[inline]
    pub fn alloc_maybe_zeroed(&self, gfp: Gfp, order: Order) -> Result<(Folio, Contents), AllocError> {
        if self.platform.fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let pinned = Pinned::new(self.platform);
        if let Some(list) = pcp::list_of(order, gfp.mobility)
            && gfp.nodes == NodePolicy::Local
            && let Some((frame, state)) = self.take_listed(pinned.cpu(), list, gfp.zone)
        {
            let zeroed = FrameState::of(state).is_zeroed();
            self.mark_in_use(frame, state, order, false);
            let contents = if zeroed { self.known(frame, order) } else { Contents::Unknown };
            return Ok((self.folio(frame, order), contents));
        }
        drop(pinned);
        let frame = self.alloc_unlisted(gfp.for_zeroes(), order)?;
        Ok((self.folio(frame, order), self.take_mark(frame, order)))
    }

    /// Frees a folio all of which is zero.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_zeroed(&self, folio: Folio) -> Result<(), FreeError> {
        if !self.zeroes.remember || self.platform.context() != Context::Task {
            return self.free(folio);
        }
        let (frame, order) = self.take_back(folio)?;
        self.in_store(|| self.store_free(frame, order, Contents::Zeroed))?;
        self.count(Stat::Pgfree, order.frames());
        Ok(())
    }

    /// Reads the mark of a folio that was just handed out, and takes it off: from now on it is its owner's.
    fn take_mark(&self, frame: Frame, order: Order) -> Contents {
        let state = self.state_cell(self.memmap.block(frame.block()), frame);
        if !FrameState::of(state).is_zeroed() {
            return Contents::Unknown;
        }
        FrameState::in_use(order).put(state);
        self.known(frame, order)
    }

    /// A folio was handed out that is known to be zero.
    #[cold]
    fn known(&self, frame: Frame, order: Order) -> Contents {
        self.count(Stat::PgzeroKnown, order.frames());
        if self.zeroes.verify
            && let Some(at) = self.first_nonzero(FrameRange::folio(frame, order))
        {
            panic!(
                "{at:?} of {frame:?}, order {order:?}, is not zero although it is known to be (invariant 9)"
            );
        }
        Contents::Zeroed
    }

    /// Frames of a zone that are free and known to be zero, apart from those on lists.
    pub(super) fn zeroed_frames(&self, zone: &Zone) -> u64 {
        zone.zeroed_blocks(self.platform) * Order::BLOCK.frames() + zone.zeroed_pieces()
    }
}

/// Says which free frames of a block in small pieces are known to be zero from now on. Under the block's lock.
pub(super) fn change(zone: &Zone, block: &Block, frames: FrameMask) {
    let before = block.zeroed().count() as i64;
    block.set_zeroed(frames);
    zone.pieces_zeroed.0.fetch_add(frames.count() as i64 - before, Ordering::Relaxed);
}

/// Chooses a group of free frames in a block of which some are known to be zero, and takes their marks off: rather one that
/// is zero, if that is wanted, or rather one that is not. Where it starts, and the state of the folio that it becomes. Under
/// the block's lock; the caller marks the frames used.
#[cold]
pub(super) fn take_group(zone: &Zone, block: &Block, search: &Search) -> Option<(usize, FrameState)> {
    let (free, zeroed) = (FrameMask::ALL.without(block.used.load()), block.zeroed());
    let rather = match search.contents {
        Contents::Zeroed => zeroed,
        Contents::Unknown => free.without(zeroed),
    };
    let index = rather.find_group(search.order).or_else(|| free.find_group(search.order))?;
    let group = FrameMask::run(index, search.order.frames() as usize);
    let marked = zeroed.intersection(group);
    if !marked.is_empty() {
        change(zone, block, zeroed.without(group));
    }
    Some((index, search.state().with_zeroes(marked == group && search.keeps_mark())))
}

/// Takes the marks off frames that were just marked used one by one, and puts them into their states where they are to be
/// kept. Under the block's lock.
#[cold]
pub(super) fn take_frames(zone: &Zone, block: &Block, search: &Search, taken: &[Frame]) {
    let zeroed = block.zeroed();
    if let Some(area) = block.area().filter(|_| search.keeps_mark()) {
        let known = taken.iter().map(|frame| frame.index_in_block()).filter(|&index| zeroed.contains(index));
        known.for_each(|index| area.set_state(index, search.state().with_zeroes(true)));
    }
    change(zone, block, zeroed.without(block.used.load()));
}
