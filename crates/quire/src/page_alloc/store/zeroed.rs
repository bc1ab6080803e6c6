//! Marks the free frames of blocks in small pieces that are known to be zero.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::memmap::{Block, FrameMask, FrameState};
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::Store;
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// Sets which free frames of a block in small pieces are known to be zero. Under the block's lock.
pub(in crate::page_alloc) fn change(zone: &Zone, block: &Block, frames: FrameMask) {
    if !block.has_zeroed() && frames.is_empty() {
        return;
    }
    let before = block.zeroed().count() as i64;
    block.set_zeroed(frames);
    zone.pieces_zeroed.0.fetch_add(frames.count() as i64 - before, Ordering::Relaxed);
}

/// Chooses a free group in a block with frames known to be zero, preferably with the requested contents, and
/// unmarks it; returns index and new state. Under the block's lock; the caller marks the frames used.
#[cold]
pub(in crate::page_alloc) fn take_group(
    zone: &Zone,
    block: &Block,
    search: &Search,
) -> Option<(usize, FrameState)> {
    let (free, zeroed) = (FrameMask::ALL.without(block.used.load()), block.zeroed());
    let rather = match search.contents {
        Contents::Zeroed => zeroed,
        Contents::Unknown => free.without(zeroed),
    };
    // A group that is zero in part is cleared whole, so a group without a mark comes before it.
    let unmarked = || free.without(zeroed).find_group(search.order);
    let index =
        rather.find_group(search.order).or_else(unmarked).or_else(|| free.find_group(search.order))?;
    let group = FrameMask::run(index, search.order.frames() as usize);
    let marked = zeroed.intersection(group);
    if !marked.is_empty() {
        change(zone, block, zeroed.without(group));
    }
    Some((index, search.state().with_zeroes(marked == group && search.keeps_mark())))
}

/// Unmarks frames just marked used one by one, and notes it in their states if asked. Under the lock.
#[cold]
pub(in crate::page_alloc) fn take_frames(zone: &Zone, block: &Block, search: &Search, taken: &[Frame]) {
    let zeroed = block.zeroed();
    if let Some(columns) = block.columns().filter(|_| search.keeps_mark()) {
        let known = taken.iter().map(|frame| frame.index_in_block()).filter(|&index| zeroed.contains(index));
        known.for_each(|index| columns.set_state(index, search.state().with_zeroes(true)));
    }
    change(zone, block, zeroed.without(block.used.load()));
}

impl<P: FramePlatform> Store<'_, P> {
    /// Reads the mark of a folio that was just allocated, and takes it off.
    pub(in crate::page_alloc) fn take_mark(&self, frame: Frame, order: Order) -> Contents {
        let state = self.frames.state_cell(self.frames.memmap.block(frame.block()), frame);
        if !FrameState::of(state).is_zeroed() {
            return Contents::Unknown;
        }
        FrameState::in_use(order).put(state);
        self.verified(frame, order)
    }

    /// Takes the marks off folios below a block's size that were just allocated for a caller that cannot ask for
    /// them. Huge pages keep theirs for their pool.
    #[inline]
    pub(in crate::page_alloc) fn drop_marks(&self, gfp: Gfp, order: Order, folios: &[Frame]) {
        if gfp.contents == Contents::Zeroed && order < Order::BLOCK {
            for &frame in folios {
                let block = self.frames.memmap.block(frame.block());
                FrameState::in_use(order).put(self.frames.state_cell(block, frame));
            }
        }
    }

    /// Counts, and verifies if configured, a folio that was allocated as known to be zero.
    #[inline]
    pub(crate) fn known(&self, frame: Frame, order: Order) -> Contents {
        self.count_known(Contents::Zeroed, order);
        self.verified(frame, order)
    }

    /// Counts a folio that was allocated, if it is known to be zero.
    #[inline]
    pub(crate) fn count_known(&self, contents: Contents, order: Order) {
        if contents == Contents::Zeroed {
            self.frames.count(Stat::PgzeroKnown, order.frames());
        }
    }

    /// Verifies, if configured, that a folio known to be zero is.
    #[inline]
    pub(in crate::page_alloc) fn verified(&self, frame: Frame, order: Order) -> Contents {
        if self.zeroes.verify {
            self.verify(frame, order);
        }
        Contents::Zeroed
    }

    #[cold]
    #[inline(never)]
    fn verify(&self, frame: Frame, order: Order) {
        if let Some(at) = self.frames.first_nonzero(FrameRange::folio(frame, order)) {
            panic!(
                "{at:?} of {frame:?}, order {order:?}, is not zero although it is known to be (invariant 9)"
            );
        }
    }
}
