//! Allocates any number of frames in a row, or frames by number, and frees any part of them.

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::{AllocError, FreeError, SplitError};
use crate::limits::{BLOCK_FRAMES, FRAME_SIZE, MAX_PHYS_BYTES};
use crate::memmap::{Block, BlockState, FrameMask, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::owned::FrameRun;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::zeroed;
use crate::platform::{Context, FramePlatform};

/// Single frames that one call frees.
const FREE_BATCH: usize = 64;

/// The largest request that one folio below a block's size serves.
const SMALL: u64 = BLOCK_FRAMES as u64 / 2;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Allocates exactly this many frames in a row (Linux: `alloc_pages_exact`), and frees at once what the
    /// smallest fitting folio, or run of blocks, has beyond them. It waits for locks.
    ///
    /// # Errors
    /// [`AllocError::BadOrder`] for no frames; [`AllocError::OutOfMemory`] in an interrupt; otherwise as
    /// [`Self::alloc`] and [`Self::alloc_contig`].
    pub fn alloc_exact(&self, gfp: Gfp, frames: u64) -> Result<FrameRun, AllocError> {
        if self.platform().context() != Context::Task {
            return Err(AllocError::OutOfMemory);
        }
        let size = frames.checked_next_power_of_two().ok_or(AllocError::OutOfMemory)?;
        let order = Order::new(size.trailing_zeros() as u8);
        let (run, contents) = match order {
            _ if frames == 0 => return Err(AllocError::BadOrder),
            Some(order) if frames <= SMALL => {
                let (folio, contents) = match gfp.contents {
                    // No clear is saved: the caller is not told.
                    Contents::Zeroed => self.requests().alloc_uncounted(gfp, order)?,
                    Contents::Unknown => (self.alloc(gfp, order)?, Contents::Unknown),
                };
                (folio.into_run(), contents)
            }
            _ => {
                let blocks = u32::try_from(frames.div_ceil(BLOCK_FRAMES as u64));
                let run = self.alloc_contig(gfp, blocks.map_err(|_| AllocError::OutOfMemory)?, 1)?;
                let first = self.frames().memmap.block(run.frames().start.block());
                let zeroed = FrameState::of(first.folio_state_cell()).is_zeroed();
                (run, if zeroed { Contents::Zeroed } else { Contents::Unknown })
            }
        };
        self.trim(run, 0..frames, [Contents::Unknown, contents])
    }

    /// Allocates the frames of a range, all or none: those that a device or a boot loader names by number.
    /// Drains per-CPU lists when some of the range seem to be in use. It waits for locks.
    ///
    /// # Errors
    /// [`AllocError::NotFree`] when some frames are in use or no memory; [`AllocError::OutOfMemory`] in an interrupt;
    /// [`AllocError::BadOrder`] for no frames.
    pub fn alloc_at(&self, range: FrameRange) -> Result<FrameRun, AllocError> {
        if range.count == 0 {
            return Err(AllocError::BadOrder);
        }
        if range.start.0.checked_add(range.count).is_none_or(|end| end > MAX_PHYS_BYTES / FRAME_SIZE) {
            return Err(AllocError::NotFree);
        }
        if self.platform().context() != Context::Task || self.platform().fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let found = self.take_range(range);
        if found != Err(AllocError::NotFree) {
            return found;
        }
        self.lists().drain_all();
        self.frames()
            .in_store(|| self.store().zones.iter().for_each(|zone| _ = self.store().merge_spares(zone)));
        self.take_range(range)
    }

    /// Frees any part of allocated memory, and splits folios for it. It waits for locks: not from an
    /// interrupt.
    ///
    /// # Errors
    /// [`FreeError`], with the frames that are not free yet: they are still the caller's.
    pub fn free_range(&self, run: FrameRun) -> Result<(), (FrameRun, FreeError)> {
        self.free_range_as(run, Contents::Unknown)
    }

    /// The same, of frames that are zero or not.
    fn free_range_as(&self, run: FrameRun, contents: Contents) -> Result<(), (FrameRun, FreeError)> {
        if let Err(error) = self.frames().check_owner(run.owner) {
            return Err((run, error));
        }
        let mut rest = run.into_raw();
        while rest.count > 0 {
            let freed = self.free_singles(rest, contents).or_else(|error| match error {
                // A frame inside a folio has an arbitrary state.
                FreeError::WrongOrder | FreeError::DoubleFree => self.free_folio_of(rest, contents),
                error => Err(error),
            });
            match freed {
                Ok(freed) => rest = FrameRange::new(rest.start.add(freed), rest.count - freed),
                Err(error) => return Err((self.frames().run(rest), error)),
            }
        }
        Ok(())
    }

    /// Frees folios of order 0 at the start of a run; returns how many, at least one.
    fn free_singles(&self, run: FrameRange, contents: Contents) -> Result<u64, FreeError> {
        if contents == Contents::Zeroed {
            return self.free_as(run.start, Order::FRAME, contents);
        }
        let count = run.count.min(FREE_BATCH as u64) as usize;
        let frames: [Frame; FREE_BATCH] = core::array::from_fn(|at| run.start.add(at as u64));
        match self.requests().free_frames(Order::FRAME, &frames[..count]) {
            Ok(()) => Ok(count as u64),
            Err((0, error)) => Err(error),
            Err((freed, _)) => Ok(freed as u64),
        }
    }

    fn free_as(&self, frame: Frame, order: Order, contents: Contents) -> Result<u64, FreeError> {
        let folio = self.frames().folio(frame, order);
        match contents {
            Contents::Zeroed => self.requests().free_zeroed(folio)?,
            Contents::Unknown => self.free(folio)?,
        }
        Ok(order.frames())
    }

    /// Frees the folio at a run's start, or splits one only partly in the run; returns how many were freed.
    fn free_folio_of(&self, run: FrameRange, contents: Contents) -> Result<u64, FreeError> {
        let start = self.frames().folio_start(run.start).ok_or(FreeError::DoubleFree)?;
        if self.frames().is_marked_free(start) {
            return Err(FreeError::DoubleFree);
        }
        let frames = self.frames().folio_rest(start);
        if start == run.start && frames <= run.count {
            let order = Order::new(frames.trailing_zeros() as u8).ok_or(FreeError::WrongOrder)?;
            return self.free_as(start, order, contents);
        }
        let part = if frames > Order::BLOCK.frames() { Order::BLOCK } else { Order::FRAME };
        match self.split_in_use(start, part) {
            // The caller looks at the start of the run again.
            Ok(_) if frames > 1 => Ok(0),
            Ok(_) | Err(SplitError::NotAFolio) => Err(FreeError::WrongOrder),
            Err(SplitError::InUse) => Err(FreeError::InUse),
            Err(SplitError::OutOfMemory) => Err(FreeError::OutOfMemory),
        }
    }

    /// Keeps the frames of a run at these places, and frees those before and after, which have these contents.
    fn trim(&self, run: FrameRun, keep: Range<u64>, ends: [Contents; 2]) -> Result<FrameRun, AllocError> {
        let all = run.frames();
        let (before, rest) = run.split_at(keep.start);
        let (kept, after) = rest.split_at(keep.end - keep.start);
        // A folio that is cut is split before any of it is freed, and only that can fail.
        let in_use = match (self.free_range_as(before, ends[0]), kept.frames().start) {
            (Err(_), _) => all.start,
            (Ok(()), start) => match self.free_range_as(after, ends[1]) {
                Ok(()) => return Ok(kept),
                Err(_) => start,
            },
        };
        self.give_back(FrameRange::new(in_use, all.end().0 - in_use.0));
        Err(AllocError::OutOfMemory)
    }

    /// Frees the folios that a failed request has taken; none needs a split.
    fn give_back(&self, frames: FrameRange) {
        let freed = self.free_range(self.frames().run(frames));
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    /// Takes all blocks before it cuts those at the ends: their descriptors then stand outside the range.
    fn take_range(&self, range: FrameRange) -> Result<FrameRun, AllocError> {
        let mut taken: Option<FrameRange> = None;
        let mut ends = [Contents::Unknown; 2];
        for piece in range.by_block() {
            match (self.take_piece(piece), taken) {
                (Ok((first, contents)), None) => (taken, ends) = (Some(first), [contents; 2]),
                (Ok((next, contents)), Some(before)) => {
                    taken = Some(FrameRange::new(before.start, before.count + next.count));
                    ends[1] = contents;
                }
                (Err(error), taken) => {
                    taken.inspect(|&taken| self.give_back(taken));
                    return Err(error);
                }
            }
        }
        let taken = taken.ok_or(AllocError::BadOrder)?;
        let from = range.start.0 - taken.start.0;
        self.trim(self.frames().run(taken), from..from + range.count, ends)
    }

    /// Takes free frames of one block, and returns them: all of the block if none is in use, with its contents.
    fn take_piece(&self, piece: FrameRange) -> Result<(FrameRange, Contents), AllocError> {
        let number = piece.start.block();
        let block = self.frames().memmap.get(number).ok_or(AllocError::NotFree)?;
        match block.state() {
            BlockState::Whole => {
                let taken = self.frames().in_store(|| self.store().take_this_block(number));
                let all = FrameRange::folio(number.first_frame(), Order::BLOCK);
                taken.map(|contents| (all, contents)).ok_or(AllocError::NotFree)
            }
            BlockState::Small => {
                let taken = self.frames().in_store(|| self.take_frames_of(number, block, piece));
                taken.map(|()| (piece, Contents::Unknown))
            }
            _ => Err(AllocError::NotFree),
        }
    }

    /// Takes free frames of a block in small pieces, all or none, as folios of order 0.
    fn take_frames_of(
        &self,
        number: BlockNumber,
        block: &Block,
        piece: FrameRange,
    ) -> Result<(), AllocError> {
        let (start, count) = (piece.start.index_in_block(), piece.count as usize);
        let wanted = FrameMask::run(start, count);
        block.lock(self.platform());
        let used = block.used.load();
        if block.state() != BlockState::Small
            || !used.intersection(wanted).is_empty()
            || self.store().zones[block.zone()].isolated.contains(number)
        {
            block.unlock(self.platform());
            return Err(AllocError::NotFree);
        }
        let zone = &self.store().zones[block.zone()];
        let used = used.union(wanted);
        block.used.store(used);
        block.heads.store(block.heads.load().union(wanted));
        block.columns().inspect(|columns| columns.set_states(start, count, FrameState::in_use(Order::FRAME)));
        if block.has_zeroed() {
            zeroed::change(zone, block, block.zeroed().without(wanted));
        }
        block.free.fetch_sub(count as u16, Ordering::Relaxed);
        let largest = FrameMask::ALL.without(used).largest_group();
        block.free_order.store(largest.min(Order::BLOCK.get()), Ordering::Relaxed);
        block.unlock(self.platform());
        self.store().count_taken_range(zone, count);
        Ok(())
    }
}

const _: () = assert!(SMALL.is_power_of_two());
