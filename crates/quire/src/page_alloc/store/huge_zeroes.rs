//! Hands what the store knows of zeroes to pages of a pool, and clears what is missing.

use crate::addr::{Frame, FrameRange, Order};
use crate::clear::Extent;
use crate::error::Cancelled;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::FrameState;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::store::Store;
use crate::page_alloc::store::whole::blocks_of;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Store<'_, P> {
    /// Frames of free pages of each pool that idle CPUs keep zero ([`Zeroes`](crate::page_alloc::Zeroes)).
    pub(crate) fn pools_ahead(&self) -> u64 {
        if self.zeroes.remember { self.zeroes.pools_ahead } else { 0 }
    }

    /// Whether it is remembered which memory is zero.
    pub(crate) fn remembers_zeroes(&self) -> bool {
        self.zeroes.remember
    }

    /// Marks what is known to be zero of a folio of whole blocks that was just allocated for a pool, by a
    /// request for zeroes.
    pub(crate) fn keep_zeroes(&self, frame: Frame, order: Order) {
        let block = self.frames.memmap.block(frame.block());
        if !self.zeroes.remember {
            return;
        }
        if FrameState::of(block.folio_state_cell()).is_zeroed() {
            return self.frames.note_all_huge_zero(frame, order);
        }
        self.zero_blocks(frame, order, |at| self.frames.note_huge_zero(frame, at));
    }

    /// Calls `zero` with the index of each block that is known to be zero, of a folio that was just allocated by a
    /// request for zeroes. The folio as a whole is not.
    pub(crate) fn zero_blocks(&self, frame: Frame, order: Order, zero: impl FnMut(u32)) {
        // A folio of one block may come from a list, and the pool's bit is of an earlier time.
        if self.zeroes.remember && order > Order::BLOCK {
            let zone = &self.zones[self.frames.memmap.block(frame.block()).zone()];
            zone.zero_blocks_of(self.frames.platform, frame.block(), blocks_of(order), zero);
        }
    }

    /// Clears a folio that was just allocated by a request for zeroes, and as a whole is not known to be zero: all
    /// blocks but those that are, the one that a task waits for last. The extent is the folio.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) fn clear_stale(&self, folio: &mut Folio, extent: &Extent) -> Result<(), Cancelled> {
        let (frame, order) = (folio.frame(), folio.order());
        // A bit for each block.
        let mut zero = [0_u64; blocks_of(Order::GIGANTIC) as usize / 64];
        self.zero_blocks(frame, order, |at| zero[at as usize / 64] |= 1 << (at % 64));
        if zero.iter().all(|&word| word == 0) {
            return self.frames.clear_extent(folio, extent);
        }
        let near = extent.near.map_or(0, |near| (near.0 - frame.0) / BLOCK_FRAMES as u64);
        let count = u64::from(blocks_of(order));
        for at in (1..=count).map(|at| (near + at) % count) {
            let part = FrameRange::folio(frame.add(at * BLOCK_FRAMES as u64), Order::BLOCK);
            if zero[at as usize / 64] >> (at % 64) & 1 == 1 {
                self.known(part.start, Order::BLOCK);
            } else {
                self.frames.clear_extent(folio, &extent.within(part))?;
            }
        }
        Ok(())
    }

    /// Clears what is not known to be zero of a page that the caller has taken from its pool, the block that
    /// a task waits for last, and marks all of it. The extent is the page.
    ///
    /// # Errors
    /// [`Cancelled`]; the blocks that were cleared are marked.
    ///
    /// # Safety
    /// Invariant 1: the caller has the page to itself, and no leaf maps it.
    pub(crate) unsafe fn clear_huge(&self, extent: &Extent, order: Order) -> Result<(), Cancelled> {
        let frame = extent.frames.start;
        if self.frames.is_huge_zero(frame, order) {
            self.known(frame, order);
            return Ok(());
        }
        let near = extent.near.map_or(0, |near| (near.0 - frame.0) / BLOCK_FRAMES as u64);
        let count = u64::from(blocks_of(order));
        for at in (1..=count).map(|at| (near + at) % count) {
            let part = FrameRange::folio(frame.add(at * BLOCK_FRAMES as u64), Order::BLOCK);
            if self.frames.is_block_zero(frame, at as u32) {
                self.known(part.start, Order::BLOCK);
                continue;
            }
            // SAFETY: invariant 1: by this function's contract; the block is a part of the page.
            unsafe { self.frames.clear_frames_in_stretches(&extent.within(part))? };
            self.frames.note_huge_zero(frame, at as u32);
        }
        self.frames.note_all_huge_zero(frame, order);
        Ok(())
    }

    /// Clears a block that the caller has claimed by
    /// [`Frames::claim_huge_clear`](crate::page_alloc::Frames::claim_huge_clear), and marks it. The extent is
    /// the page. Returns whether it did: not if a CPU wants the page meanwhile. The caller holds no lock.
    ///
    /// # Errors
    /// [`Cancelled`]: the task is to be killed.
    pub(crate) fn clear_claimed(&self, extent: &Extent, block: u32) -> Result<bool, Cancelled> {
        let platform = self.frames.platform;
        let cleared = self.clear_claimed_until(extent, block, || platform.is_dying());
        if platform.is_dying() { Err(Cancelled) } else { Ok(cleared) }
    }

    /// The same, whether or not the task is to be killed.
    pub(crate) fn clear_claimed_until(&self, extent: &Extent, block: u32, stop: impl Fn() -> bool) -> bool {
        let frame = extent.frames.start;
        let part = FrameRange::folio(frame.add(u64::from(block) * BLOCK_FRAMES as u64), Order::BLOCK);
        let stop = || stop() || self.frames.is_huge_wanted(frame);
        // SAFETY: invariant 1: no leaf maps the block, and a CPU that takes the page waits for the claim.
        let cleared = unsafe { self.frames.clear_frames_until(&extent.within(part), stop) }.is_ok();
        self.frames.end_huge_clear(frame, block, cleared);
        cleared
    }
}
