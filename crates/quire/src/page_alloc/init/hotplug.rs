//! Adds memory after start-up and removes it: hot-plugged modules, and what a boot loader gives up.
//!
//! [`PageAllocator::with_later`] makes records and pools for all memory that may ever be added: 1.6 KiB for
//! each 2 MiB. So adding memory allocates nothing, and touches neither the new memory nor any table. Memory
//! is added and removed in whole blocks of 2 MiB.
//!
//! A block that is not there is *absent* in its record, and taken in its pool. Memory is emptied before it is
//! removed, as a range that is allocated in a row ([`PageAllocator::alloc_contig_moving`]).

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{BlockNumber, FrameRange, Order};
use crate::error::HotplugError;
use crate::limits::{BLOCK_FRAMES, SECTION_BLOCKS};
use crate::memmap::{Block, BlockState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::request::gfp::KINDS;
use crate::page_alloc::store::capacity::is_complete;
use crate::page_alloc::store::isolate::Shape;
use crate::page_alloc::store::marks::{BY_RULE, Watermarks, low_reserve, machine_min};
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Adds memory that was announced at start-up, or removed since. `zeroed` promises that it reads as zero.
    /// Updates the watermarks of all zones. Invokes a reschedule point after each
    /// [`RANGE_BLOCKS`](crate::limits::RANGE_BLOCKS) blocks: the caller holds no lock and is not pinned.
    ///
    /// # Safety
    /// Invariant 1 starts here for `range`: the memory is there, and only this allocator uses it, until
    /// [`Self::remove_memory`] returns it. If `zeroed`, all of it reads as zero now.
    ///
    /// # Errors
    /// [`HotplugError::Unaligned`], [`HotplugError::NotExpected`], [`HotplugError::Present`]; nothing has
    /// changed then.
    pub unsafe fn add_memory(&self, range: FrameRange, zeroed: bool) -> Result<(), HotplugError> {
        let (first, end) = blocks_of_range(range)?;
        let blocks = || self.store().in_stretches(first, end.0 - first.0);
        for number in blocks() {
            if self.frames().memmap.get(number).is_none() || self.store().zone_around(number).is_none() {
                return Err(HotplugError::NotExpected);
            }
        }
        for number in blocks() {
            if !self.frames().change_state(number, BlockState::Absent, BlockState::Whole) {
                // Nothing else changes a block that is whole and in no pool.
                self.store().in_stretches(first, number.0 - first.0).for_each(|number| {
                    self.frames().memmap.block(number).set_state(BlockState::Absent);
                });
                self.note_areas(first, number);
                return Err(HotplugError::Present);
            }
        }
        for number in blocks() {
            let Some(zone) = self.store().zone_around(number) else { continue };
            zone.managed.fetch_add(BLOCK_FRAMES as u64, Ordering::Relaxed);
            zone.present.fetch_add(BLOCK_FRAMES as u64, Ordering::SeqCst);
            let known = zeroed && self.store().zeroes.remember;
            self.frames()
                .in_store(|| zone.put_blocks(self.platform(), &self.frames().memmap, number, 1, known));
            zone.add_free(BLOCK_FRAMES as i64);
        }
        self.note_areas(first, end);
        self.present.fetch_add(range.count, Ordering::SeqCst);
        self.update_marks();
        Ok(())
    }

    /// Removes memory of one range of the machine. `move_out` moves what is in use there, as for
    /// [`Self::alloc_contig_moving`]. No frame of it is handed out from the call on; after a successful
    /// return the allocator does not touch the memory any more. Reschedule points as in [`Self::add_memory`].
    ///
    /// # Errors
    /// [`HotplugError`].
    pub fn remove_memory(
        &self,
        range: FrameRange,
        mut move_out: impl FnMut(FrameRange),
    ) -> Result<(), HotplugError> {
        let (first, end) = blocks_of_range(range)?;
        let blocks = || self.store().in_stretches(first, end.0 - first.0);
        for number in blocks() {
            let block = self.frames().memmap.get(number).ok_or(HotplugError::Absent)?;
            match block.state() {
                BlockState::Absent => return Err(HotplugError::Absent),
                BlockState::Metadata => return Err(HotplugError::HoldsTables),
                _ if self.store().zone_around(number).is_none() => return Err(HotplugError::NotExpected),
                BlockState::Small if !is_complete(block) => {
                    return Err(HotplugError::HoldsTables);
                }
                _ if self.cannot_move(block) => return Err(HotplugError::InUse),
                _ => {}
            }
        }
        let count = end.0 - first.0;
        let zone = self.store().zone_around(first).ok_or(HotplugError::NotExpected)?;
        if zone.region_from(self.platform(), first) < count {
            return Err(HotplugError::SeveralRanges);
        }
        if !self.may_isolate(zone) {
            return Err(HotplugError::InUse);
        }
        let shape = Shape { blocks: count, align: 1, order: Order::BLOCK };
        self.store().isolate(zone, first, count);
        let emptied = self.empty(zone, first, count, &mut move_out);
        let taken = self.store().end_isolation(zone, first, shape, emptied);
        zone.isolated.give_back();
        if !taken {
            return Err(HotplugError::InUse);
        }
        for number in blocks() {
            let block = self.frames().memmap.block(number);
            block.lock(self.platform());
            block.reset();
            block.set_state(BlockState::Absent);
            block.unlock(self.platform());
        }
        self.note_areas(first, end);
        zone.managed.fetch_sub(range.count, Ordering::Relaxed);
        zone.present.fetch_sub(range.count, Ordering::SeqCst);
        self.present.fetch_sub(range.count, Ordering::SeqCst);
        self.update_marks();
        Ok(())
    }

    /// Notes of each area of 1 GiB in which these blocks lie whether it is complete. They have changed before.
    fn note_areas(&self, first: BlockNumber, end: BlockNumber) {
        let areas = first.0 / SECTION_BLOCKS as u32..end.0.div_ceil(SECTION_BLOCKS as u32);
        for start in areas.map(|area| area * SECTION_BLOCKS as u32) {
            let inside = BlockNumber(start.max(first.0));
            let Some(zone) = self.store().zone_around(inside) else { continue };
            // Another call may change other blocks of the area meanwhile. The one that writes last looks again.
            let mut whole = self.is_whole_area(zone, BlockNumber(start));
            loop {
                zone.areas.set_whole(inside, whole);
                let now = self.is_whole_area(zone, BlockNumber(start));
                if now == whole {
                    break;
                }
                whole = now;
            }
            self.platform().reschedule_point();
        }
    }

    /// Whether all of the area of 1 GiB from this block on is memory of one range of the zone, and no part of it holds
    /// tables.
    fn is_whole_area(&self, zone: &Zone, first: BlockNumber) -> bool {
        let numbers = (first.0..first.0 + SECTION_BLOCKS as u32).map(BlockNumber);
        let is_there = |number| {
            self.frames().memmap.get(number).is_some_and(|block| match block.state() {
                BlockState::Absent | BlockState::Metadata => false,
                BlockState::Small => is_complete(block),
                _ => true,
            })
        };
        let in_one_range = zone.region_from(self.platform(), first) >= SECTION_BLOCKS as u32;
        in_one_range && { numbers }.all(is_there)
    }

    /// Whether a block has frames in use that cannot move. A frame on a per-CPU list counts as one, so the lists are
    /// drained before the answer is yes.
    fn cannot_move(&self, block: &Block) -> bool {
        let stuck = || self.store().cost_of(block).is_none();
        stuck() && {
            self.lists().drain_all();
            stuck()
        }
    }

    /// Chooses how many frames the zones keep free in all: the sum of their `min` marks, at most 1/4 of each zone
    /// (Linux: `vm.min_free_kbytes`). Without a number it follows from the memory that is there.
    pub fn set_min_free(&self, frames: Option<u64>) {
        self.min_free.store(frames.unwrap_or(BY_RULE), Ordering::SeqCst);
        self.update_marks();
    }

    /// What [`Self::set_min_free`] was asked for, or what follows from the memory that is there.
    pub fn min_free(&self) -> u64 {
        match self.min_free.load(Ordering::Relaxed) {
            BY_RULE => machine_min(self.total_frames()),
            frames => frames,
        }
    }

    /// Recomputes the marks of all zones, which are shares of the memory that is there (Linux:
    /// `setup_per_zone_wmarks`, `setup_per_zone_lowmem_reserve`).
    pub(in crate::page_alloc) fn update_marks(&self) {
        let of = |amount: &AtomicU64| amount.load(Ordering::SeqCst);
        let zones = &self.store().zones;
        for zone in zones.iter() {
            let node = usize::from(zone.node) * KINDS;
            let of_kind = |kind| zones.get(node + kind).map_or(0, |zone: &Zone| of(&zone.present));
            zone.marks.update(|| {
                let (present, total) = (of(&zone.present), of(&self.present));
                let marks = match of(&self.min_free) {
                    BY_RULE => Watermarks::for_zone(present, total),
                    frames => Watermarks::share(frames, present, total),
                };
                (marks, low_reserve(zone.kind, core::array::from_fn(of_kind)))
            });
        }
    }
}

/// The first block of a range, and the one after its last.
fn blocks_of_range(range: FrameRange) -> Result<(BlockNumber, BlockNumber), HotplugError> {
    let aligned = range.start.is_aligned(Order::BLOCK) && range.count.is_multiple_of(BLOCK_FRAMES as u64);
    let end = range.start.0.checked_add(range.count).filter(|_| aligned && range.count > 0);
    let end = end.ok_or(HotplugError::Unaligned)?;
    let last = u32::try_from(end / BLOCK_FRAMES as u64).map_err(|_| HotplugError::NotExpected)?;
    Ok((range.start.block(), BlockNumber(last)))
}
