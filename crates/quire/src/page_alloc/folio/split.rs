//! Splits folios in use. Their frames stay where they are, mapped as they are, and every count stays exact.
//!
//! Below a block's size only the map of folio starts changes. A folio of whole blocks is split into folios of
//! whole blocks. To be split further, a block becomes one in small pieces. Neither needs memory.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::SplitError;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER};
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameMask, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::owned::{Folio, FrameRun};
use crate::page_alloc::frames::partial_free::{make_heads, split_remainders};
use crate::page_alloc::request::gfp::Gfp;
use crate::page_alloc::store::slots::CountSlot;
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// What must hold of a folio once its lock is taken. If it does not, the folio was freed since the caller
/// looked: it is free memory, or belongs to a task that is about to map it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::page_alloc) enum Only {
    /// Nothing: the caller keeps it in use.
    Own,
    /// Leaves map it, or part of it.
    Mapped,
    /// It waits for its deferred split.
    Waiting,
    /// Nothing: it is a part of a folio that the caller splits, and counts as mapped once more. If some of
    /// that folio was mapped (`mapped`) and none of this part is, the part is free.
    Part { mapped: bool },
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Splits the folio in use that starts at `frame` into folios of order `to`. If it is not held and leaves
    /// map some of its frames, those that no leaf maps are freed at once; returns how many. Leaves of 4 KiB
    /// may come and go meanwhile, but the caller keeps the folio as a whole in use.
    ///
    /// # Errors
    /// [`SplitError::NotAFolio`]; [`SplitError::InUse`] when a leaf larger than `to` maps it: split that
    /// first; [`SplitError::OutOfMemory`]. Nothing has changed then, but a folio of several blocks may be
    /// partly split.
    ///
    /// # Safety
    /// No value owns the folio. Nothing refers to frames of it that are neither mapped nor held (invariant
    /// 1), unless none of it is mapped: it stays in use then, and remains the caller's.
    pub unsafe fn split_folio(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        self.split_in_use(frame, to)
    }

    /// Splits an owned folio into folios of order `to`, which make up the returned run.
    ///
    /// # Errors
    /// [`SplitError`], with the frames, as [`Self::split_folio`].
    pub fn split(&self, folio: Folio, to: Order) -> Result<FrameRun, (FrameRun, SplitError)> {
        self.frames().expect_own(&folio);
        match self.split_in_use(folio.frame(), to) {
            Ok(_) => Ok(folio.into_run()),
            Err(error) => Err((folio.into_run(), error)),
        }
    }

    pub(in crate::page_alloc) fn split_in_use(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        self.split_only(frame, to, Only::Own)
    }

    /// [`Self::split_folio`] for a caller that saw that the folio is mapped, but does not keep it so.
    ///
    /// # Errors
    /// As [`Self::split_folio`]; [`SplitError::NotAFolio`] also where no leaf maps it any more.
    ///
    /// # Safety
    /// As for [`Self::split_folio`].
    pub unsafe fn split_mapped(&self, frame: Frame, to: Order) -> Result<u64, SplitError> {
        self.split_only(frame, to, Only::Mapped)
    }

    fn split_only(&self, frame: Frame, to: Order, only: Only) -> Result<u64, SplitError> {
        let block = self.frames().memmap.get_around(frame).ok_or(SplitError::NotAFolio)?;
        let number = frame.block();
        block.lock(self.platform());
        let (state, order) = (block.state(), block.order.load(Ordering::Relaxed));
        let small =
            (state == BlockState::Small).then(|| self.split_small(block, frame.index_in_block(), to, only));
        block.unlock(self.platform());
        if let Some(split) = small {
            return split.map(|()| 0);
        }
        if state != BlockState::Folio || frame.index_in_block() != 0 {
            return Err(SplitError::NotAFolio);
        }
        if to.get() >= order {
            return Ok(0);
        }
        #[cfg(feature = "published")]
        if self.counts().is_counted_as_published(frame) && block.folio_maps.load(Ordering::Acquire) != 0 {
            // These schemes do not count what maps its parts, or not where a split looks.
            return Err(SplitError::InUse);
        }
        if order == BLOCK_ORDER {
            self.split_block(number, to, only)
        } else {
            self.split_large(number, to, only)
        }
    }

    /// Splits a folio of several blocks.
    pub(in crate::page_alloc) fn split_large(
        &self,
        first: BlockNumber,
        to: Order,
        only: Only,
    ) -> Result<u64, SplitError> {
        let part = to.max(Order::BLOCK);
        let (blocks, mapped) = self.split_blocks(first, part, only)?;
        let mut outcome = Ok(0);
        for at in (0..blocks).step_by(1 << (part.get() - BLOCK_ORDER)) {
            let number = first.add(at);
            if to < Order::BLOCK {
                outcome = outcome
                    .and_then(|freed| Ok(freed + self.split_block(number, to, Only::Part { mapped })?));
            }
            if to >= Order::BLOCK || outcome.is_err() {
                let freed = self.finish_part(number, part, mapped);
                outcome = outcome.map(|before| before + freed);
            }
        }
        outcome
    }

    /// Splits a folio of order 9. If no leaf maps any of it, all stays in use, save a part of a mapped folio.
    /// Returns how many frames were freed.
    pub(in crate::page_alloc) fn split_block(
        &self,
        number: BlockNumber,
        to: Order,
        only: Only,
    ) -> Result<u64, SplitError> {
        let block = self.frames().memmap.block(number);
        block.lock(self.platform());
        let found = self.unmapped_frames(block, only == Only::Part { mapped: true });
        let unmapped = found.unwrap_or(FrameMask::EMPTY);
        let marks = if self.frames().bad_frames() == 0 { FrameMask::EMPTY } else { block.used.load() };
        let may = if block.state() != BlockState::Folio || block.order.load(Ordering::Relaxed) != BLOCK_ORDER
        {
            Err(SplitError::NotAFolio)
        } else if block.large_maps.load(Ordering::Relaxed) != 0 {
            Err(SplitError::InUse)
        } else if block.folio_maps.load(Ordering::Acquire) != u64::from(matches!(only, Only::Part { .. })) {
            // Another task splits the folio that it was part of, or is about to count down a leaf of that.
            Err(SplitError::InUse)
        } else if !self.is_still(block, only) {
            Err(SplitError::NotAFolio)
        } else if found.is_none() && !marks.is_empty() {
            // A bad frame is lost when the folio is freed, or the task that marked it takes the mark off.
            Err(SplitError::InUse)
        } else {
            Ok(())
        };
        may.inspect_err(|_| block.unlock(self.platform()))?;
        self.counts().forget_deferred(number, block);
        if unmapped == FrameMask::ALL {
            block.set_state(BlockState::Listed);
            block.unlock(self.platform());
            self.store().put_whole(number, Order::BLOCK);
            return Ok(BLOCK_FRAMES as u64);
        }
        let slot = self.become_small(number, block, unmapped, to);
        self.frames().split_marks(block, unmapped.intersection(marks), marks.without(unmapped));
        let freed = unmapped.without(marks);
        for (start, count) in freed.runs() {
            self.frames().note_freed(FrameRange::new(number.first_frame().add(start as u64), count as u64));
        }
        self.store().store_put(number, block, freed);
        if let Some(slot) = slot {
            self.store().give_slot(slot);
        }
        self.count(Stat::ThpSplitPage, 1);
        Ok(freed.count() as u64)
    }

    /// Whether `only` holds of a folio of order 9 or more. Under the lock of its first block.
    fn is_still(&self, block: &Block, only: Only) -> bool {
        match only {
            Only::Own | Only::Part { .. } => true,
            Only::Mapped if block.order.load(Ordering::Relaxed) == BLOCK_ORDER => {
                !block.small_maps(self.platform()).nonzero().is_empty()
            }
            Only::Mapped => block.folio_maps.load(Ordering::Relaxed) != 0,
            Only::Waiting => block.folio().has(DescriptorFlags::DEFERRED),
        }
    }

    /// The frames of a folio of order 9 that no leaf maps, if it is not held, and `mapped` or leaves map
    /// others.
    fn unmapped_frames(&self, block: &Block, mapped: bool) -> Option<FrameMask> {
        let counted = block.small_maps(self.platform()).nonzero();
        let shared = !block.held.contains(0) && (mapped || !counted.is_empty());
        shared.then(|| FrameMask::ALL.without(counted))
    }

    /// Splits a folio of several blocks into folios of whole blocks. Returns how many blocks it had, and
    /// whether leaves map any of it. Each part counts as mapped once more until [`Self::finish_part`], so
    /// that no task finds it unmapped while counts move.
    fn split_blocks(&self, first: BlockNumber, to: Order, only: Only) -> Result<(u32, bool), SplitError> {
        let head = self.frames().memmap.block(first);
        let per_part = 1u32 << (to.get() - BLOCK_ORDER);
        head.lock(self.platform());
        let large = head.state() == BlockState::Folio && head.order.load(Ordering::Relaxed) > BLOCK_ORDER;
        // A hold is on the first frame alone, and its release would give up that frame alone.
        let in_use = || {
            head.gigantic_maps.load(Ordering::Relaxed) != 0
                || head.held.contains(0)
                || head.folio().has(DescriptorFlags::SPLITTING)
        };
        let may = if !large || !self.is_still(head, only) {
            Err(SplitError::NotAFolio)
        } else if in_use() {
            Err(SplitError::InUse)
        } else {
            Ok(())
        };
        may.inspect_err(|_| head.unlock(self.platform()))?;
        self.counts().forget_deferred(first, head);
        head.folio().add_flags(DescriptorFlags::SPLITTING);
        let blocks = 1 << (head.order.load(Ordering::Relaxed) - BLOCK_ORDER);
        let mapped = head.folio_maps.load(Ordering::Relaxed) != 0;
        for at in (0..blocks).step_by(per_part as usize) {
            self.frames().memmap.block(first.add(at)).folio_maps.fetch_add(1, Ordering::AcqRel);
        }
        head.unlock(self.platform());
        for at in (0..blocks).rev() {
            self.split_off(first, first.add(at / per_part * per_part), first.add(at), to);
        }
        Ok((blocks, mapped))
    }

    /// Ends [`Self::split_blocks`] for one part; how many frames became free: all, if it is unmapped and
    /// others are not.
    fn finish_part(&self, number: BlockNumber, order: Order, mapped: bool) -> u64 {
        let block = self.frames().memmap.block(number);
        block.lock(self.platform());
        let left = block.folio_maps.fetch_sub(1, Ordering::AcqRel) - 1;
        let small = block.small_maps(self.platform()).nonzero();
        let large = block.large_maps.load(Ordering::Relaxed) != 0;
        // If another task holds the part by now, the release of that hold frees it.
        let free = left == 0 && small.is_empty() && !large && mapped && !block.held.contains(0);
        if free {
            // Leaves that went since the part became a folio may have deferred its split.
            self.counts().forget_deferred(number, block);
            block.set_state(BlockState::Listed);
        } else if mapped && !large && !small.is_empty() && small != FrameMask::ALL {
            self.counts().defer_split(number, block);
        }
        block.unlock(self.platform());
        if free {
            self.store().put_whole(number, order);
        }
        if free { order.frames() } else { 0 }
    }

    /// Splits a folio below a block's size. Under the block's lock.
    fn split_small(&self, block: &Block, index: usize, to: Order, only: Only) -> Result<(), SplitError> {
        if !block.used.contains(index) || !block.heads.contains(index) {
            return Err(SplitError::NotAFolio);
        }
        if block.held.contains(index) {
            return Err(SplitError::InUse);
        }
        let frames = block.folio_frames(index);
        let mapped =
            || block.small_maps(self.platform()).nonzero().intersection(FrameMask::run(index, frames));
        if only == Only::Mapped && mapped().is_empty() {
            return Err(SplitError::NotAFolio);
        }
        if frames > to.frames() as usize {
            make_heads(block, index, frames, to.frames() as usize);
        }
        Ok(())
    }

    /// Makes a block of a folio part of the folio of order `to` at `start`, and counts its leaves there.
    fn split_off(&self, first: BlockNumber, start: BlockNumber, number: BlockNumber, to: Order) {
        let (head, block) = (self.frames().memmap.block(first), self.frames().memmap.block(number));
        block.lock(self.platform());
        let small = block.small_maps(self.platform()).sum();
        let maps = small + u64::from(block.large_maps.load(Ordering::Relaxed));
        head.folio_maps.fetch_sub(maps, Ordering::AcqRel);
        if to > Order::BLOCK {
            self.frames().memmap.block(start).folio_maps.fetch_add(maps, Ordering::AcqRel);
        }
        block.order.store(to.get(), Ordering::Relaxed);
        FrameState::UNKNOWN.put(block.folio_state_cell());
        if number == start {
            block.set_state(BlockState::Folio);
            let pages = number.first_frame().0 - first.first_frame().0;
            let origin = head.folio().index.load(Ordering::Relaxed).wrapping_add(pages);
            block.folio().index.store(origin, Ordering::Relaxed);
        }
        if number == first {
            // The caller comes to the first block last.
            block.folio().take_flags(DescriptorFlags::SPLITTING);
        }
        block.unlock(self.platform());
    }

    /// Turns the record of a folio of order 9 into that of a small block, all in use. Returns the slot of its
    /// counts, if it needs none any more. Under its lock.
    fn become_small(
        &self,
        number: BlockNumber,
        block: &Block,
        unmapped: FrameMask,
        to: Order,
    ) -> Option<CountSlot> {
        let zone = &self.store().zones[block.zone()];
        let origin = block.folio().index.load(Ordering::Relaxed);
        let columns = self.frames().memmap.columns_of(number);
        // SAFETY: M2: the caller holds the lock, and the block is a folio of order 9.
        let slot = unsafe { block.open_columns(self.platform(), columns, number.first_frame(), origin) };
        // The map of heads overwrites the folio's descriptor.
        block.heads.store(FrameMask::run(0, 1));
        make_heads(block, 0, BLOCK_FRAMES, to.frames() as usize);
        block.used.store(FrameMask::ALL);
        split_remainders(block, unmapped);
        block.capacity.store(BLOCK_FRAMES as u16, Ordering::Relaxed);
        block.folio_maps.store(0, Ordering::Relaxed);
        block.free.store(0, Ordering::Relaxed);
        block.free_order.store(0, Ordering::Relaxed);
        block.shard.store((number.0 as usize % zone.shards.len()) as u16, Ordering::Relaxed);
        block.set_group(zone.number, Gfp::USER.mobility as u8);
        block.set_state(BlockState::Small);
        slot.map(CountSlot::of)
    }
}
