//! Allocates ranges of blocks after moving what is in them elsewhere (Linux: `alloc_contig_range`).
//!
//! By the blocks' records it finds the movable ranges of which least must move, and tries the best few, or all
//! when a pool grows. Each is *isolated* ([`isolated`](crate::page_alloc::store::isolated)), the lists are
//! drained if they may have frames of it, and the caller's function moves what it can. If all of the range
//! becomes free it is taken, else given back as it is.
//!
//! A search for a range of several blocks looks at all blocks, once for each [`CONTIG_TRIES`] ranges that it
//! tries. One for a single block must not, since a pool that grows makes one for each page: see
//! [`search`](super::search).
#![forbid(unsafe_code)]

use core::cell::Cell;
use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::limits::{BLOCK_FRAMES, CONTIG_ROUNDS, CONTIG_TRIES, SECTION_BLOCKS};
use crate::memmap::BlockState;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::contig::search::{ANY, CHEAP};
use crate::page_alloc::frames::owned::{Folio, FrameRun};
use crate::page_alloc::request::gfp::Gfp;
use crate::page_alloc::store::isolate::Shape;
use crate::page_alloc::store::whole::blocks_of;
use crate::page_alloc::store::zone::Zone;
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// Ranges to try, and how many frames of each would move, the fewest first.
type Candidates = [Option<(u64, BlockNumber)>; CONTIG_TRIES];

/// How many ranges a request tries to empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// [`CONTIG_TRIES`] in each zone.
    Some,
    /// Every range that may be emptied; if it is for one block, those of all zones that cost little first.
    All,
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// As [`Self::alloc_contig`]; where no such range is free, `move_out` empties one: it gets the range up
    /// to [`CONTIG_ROUNDS`] times and moves what it can, while no frame of it is allocated. The caller holds
    /// no lock and is not pinned.
    ///
    /// # Errors
    /// As [`Self::alloc_contig`]; also [`AllocError::OutOfMemory`] where the best [`CONTIG_TRIES`] ranges
    /// cannot be emptied, or the task is dying. Moved memory stays where it is then.
    pub fn alloc_contig_moving(
        &self,
        gfp: Gfp,
        blocks: u32,
        align_blocks: u32,
        move_out: impl FnMut(FrameRange),
    ) -> Result<FrameRun, AllocError> {
        match self.alloc_contig(gfp, blocks, align_blocks) {
            Err(AllocError::OutOfMemory) => {
                let shape = Shape { blocks, align: align_blocks, order: Order::BLOCK };
                let start = self.empty_one(gfp, shape, Effort::Some, move_out)?;
                Ok(self.frames().run(FrameRange::new(start, u64::from(blocks) * BLOCK_FRAMES as u64)))
            }
            done => done,
        }
    }

    /// As [`Self::alloc_contig_moving`], for a folio of order 9 or more.
    ///
    /// # Errors
    /// As [`Self::alloc_contig_moving`]; [`AllocError::BadOrder`] for smaller ones.
    pub fn alloc_moving(
        &self,
        gfp: Gfp,
        order: Order,
        move_out: impl FnMut(FrameRange),
    ) -> Result<Folio, AllocError> {
        if order < Order::BLOCK {
            return Err(AllocError::BadOrder);
        }
        match self.alloc(gfp, order) {
            Err(AllocError::OutOfMemory) => self.alloc_emptied(gfp, order, Effort::Some, move_out),
            done => done,
        }
    }

    /// The same where the caller knows that no such folio is free.
    pub(crate) fn alloc_emptied(
        &self,
        gfp: Gfp,
        order: Order,
        effort: Effort,
        move_out: impl FnMut(FrameRange),
    ) -> Result<Folio, AllocError> {
        let blocks = blocks_of(order);
        let start = self.empty_one(gfp, Shape { blocks, align: blocks, order }, effort, move_out)?;
        Ok(self.frames().folio(start, order))
    }

    /// Empties a range in one of the zones that the request allows, and takes it.
    #[cold]
    fn empty_one(
        &self,
        gfp: Gfp,
        shape: Shape,
        effort: Effort,
        mut move_out: impl FnMut(FrameRange),
    ) -> Result<Frame, AllocError> {
        if self.platform().context() != Context::Task {
            return Err(AllocError::OutOfMemory);
        }
        let cpu = Pinned::new(self.platform()).cpu();
        let frames = u64::from(shape.blocks) * BLOCK_FRAMES as u64;
        let zones = self.requests().zones_again(cpu, gfp)?;
        let thorough = effort == Effort::All && shape.blocks == 1;
        let limits: &[u16] = if thorough { &[CHEAP, ANY] } else { &[ANY] };
        for (&limit, &number) in limits.iter().flat_map(|limit| zones.iter().map(move |zone| (limit, zone))) {
            let zone = &self.store().zones[usize::from(number)];
            if limit == CHEAP && zone.is_barren() {
                continue;
            }
            if !self.may_isolate(zone) {
                return Err(AllocError::OutOfMemory);
            }
            // Moving does not change the number of free frames; draining the lists does.
            let allowed = || zone.allowance(gfp.urgency, gfp.zone) >= frames;
            if !allowed() {
                self.lists().drain_all();
            }
            let found =
                if allowed() { self.empty_in(zone, shape, (limit, effort), &mut move_out) } else { None };
            zone.isolated.give_back();
            if let Some(first) = found {
                let pinned = Pinned::new(self.platform());
                self.store().count_alloc(pinned.cpu(), number.into(), frames);
                self.requests().count_placed(pinned.cpu(), gfp, zones, number.into(), frames);
                return Ok(first.first_frame());
            }
        }
        Err(AllocError::OutOfMemory)
    }

    /// Waits for the right to isolate blocks of the zone. Returns whether it has it, which it has not if the
    /// task is dying.
    pub(in crate::page_alloc) fn may_isolate(&self, zone: &Zone) -> bool {
        while !zone.isolated.try_take() {
            if self.platform().is_dying() {
                return false;
            }
            self.platform().reschedule_point();
            self.platform().relax();
        }
        true
    }

    fn empty_in(
        &self,
        zone: &Zone,
        shape: Shape,
        (limit, effort): (u16, Effort),
        move_out: &mut impl FnMut(FrameRange),
    ) -> Option<BlockNumber> {
        if shape.blocks == 1 {
            let tries = if effort == Effort::All { usize::MAX } else { CONTIG_TRIES };
            return self.empty_any_block(zone, shape, (limit, tries), move_out);
        }
        // Costs change meanwhile, so a range might come again: no more tries than there are ranges.
        let ranges = if effort == Effort::All { zone.blocks(self.platform()) / shape.align } else { 0 };
        let (mut last, mut tried) = (None, 0);
        loop {
            let candidates = self.cheapest(zone, shape, last);
            for range in candidates.into_iter().flatten() {
                let hopeless = tried >= CONTIG_TRIES && self.has_unmovable_in(range.1, shape.blocks);
                if !hopeless && self.empty_this(zone, range.1, shape, move_out) {
                    return Some(range.1);
                }
                (last, tried) = (Some(range), tried + 1);
            }
            let seen_all = candidates[CONTIG_TRIES - 1].is_none();
            if seen_all || tried >= ranges as usize || self.platform().is_dying() {
                return None;
            }
        }
    }

    /// Whether some block of a range surely cannot be emptied, by its folios.
    fn has_unmovable_in(&self, first: BlockNumber, blocks: u32) -> bool {
        (first.0..first.0 + blocks).any(|number| self.has_unmovable(BlockNumber(number)))
    }

    /// Empties a range and takes it, if all of it can be moved.
    pub(super) fn empty_this(
        &self,
        zone: &Zone,
        first: BlockNumber,
        shape: Shape,
        move_out: &mut impl FnMut(FrameRange),
    ) -> bool {
        self.store().isolate(zone, first, shape.blocks);
        let emptied = self.empty(zone, first, shape.blocks, move_out);
        let taken = self.store().end_isolation(zone, first, shape, emptied);
        self.count(if taken { Stat::ContigAllocSuccess } else { Stat::ContigAllocFail }, 1);
        taken
    }

    /// The ranges of several blocks of which least must move, after the one that was tried last.
    fn cheapest(&self, zone: &Zone, shape: Shape, last: Option<(u64, BlockNumber)>) -> Candidates {
        let looked_at = Cell::new(0_u64);
        let cost_of = |number: u32| {
            looked_at.set(looked_at.get() + 1);
            if looked_at.get().is_multiple_of(SECTION_BLOCKS as u64) {
                self.platform().reschedule_point();
            }
            self.store().cost_of(self.frames().memmap.block(BlockNumber(number)))
        };
        let mut best: Candidates = [None; CONTIG_TRIES];
        for pool in zone.pools.iter() {
            let (first, count) = pool.lock(self.platform()).region();
            let end = first.0 + count;
            // The blocks from `start` up to `at` will do, with this cost.
            let (mut start, mut cost) = (first.0.next_multiple_of(shape.align), 0);
            let mut at = start;
            while at < end {
                let Some(more) = cost_of(at) else {
                    (start, cost) = ((at + 1).next_multiple_of(shape.align), 0);
                    at = start;
                    continue;
                };
                (at, cost) = (at + 1, cost + more);
                if at - start == shape.blocks {
                    let range = (cost, BlockNumber(start));
                    if Some(range) > last {
                        note(&mut best, range);
                    }
                    let next = start + shape.align;
                    let gone = |cost: u64, gone| cost.saturating_sub(cost_of(gone).unwrap_or(0));
                    cost = if next < at { (start..next).fold(cost, gone) } else { 0 };
                    (start, at) = (next, at.max(next));
                }
            }
        }
        self.count(Stat::ContigScanned, looked_at.get());
        best
    }

    /// Empties an isolated range, if all of it can be moved.
    pub(in crate::page_alloc) fn empty(
        &self,
        zone: &Zone,
        first: BlockNumber,
        blocks: u32,
        move_out: &mut impl FnMut(FrameRange),
    ) -> bool {
        let range = FrameRange::new(first.first_frame(), u64::from(blocks) * BLOCK_FRAMES as u64);
        for round in 0..CONTIG_ROUNDS {
            if self.store().collected(zone, first) == blocks {
                return true;
            }
            let survey = || {
                let (aside, stuck) = self.survey(zone, first, blocks);
                zone.isolated.aside.store(aside as i64, Ordering::Relaxed);
                stuck
            };
            // Frames on lists are neither mapped nor held.
            let stuck = survey() && {
                self.lists().drain_all();
                survey()
            };
            if self.store().collected(zone, first) == blocks {
                return true;
            }
            if self.platform().is_dying() {
                return false;
            }
            // Frames that were just allocated may be mapped in a moment.
            if !stuck {
                move_out(range);
            } else if round >= CONTIG_ROUNDS / 2 {
                return false;
            }
            self.platform().reschedule_point();
        }
        self.lists().drain_all();
        self.survey(zone, first, blocks);
        self.store().collected(zone, first) == blocks
    }

    /// Collects entirely free blocks of the range. Returns how many frames are free, and whether some are
    /// neither free, mapped nor held: these are on a list, or cannot be moved.
    fn survey(&self, zone: &Zone, first: BlockNumber, blocks: u32) -> (u64, bool) {
        let (mut free, mut stuck) = (0, false);
        self.store().each_in_stretches(first, blocks, |number| {
            self.store().merge_isolated(zone, number);
            let block = self.frames().memmap.block(number);
            block.lock(self.platform());
            match block.state() {
                BlockState::Small => {
                    free += u64::from(block.free.load(Ordering::Relaxed));
                    stuck |= !self.store().unmapped(block).is_empty();
                }
                state => stuck |= state == BlockState::Listed,
            }
            block.unlock(self.platform());
        });
        (free + u64::from(self.store().collected(zone, first)) * BLOCK_FRAMES as u64, stuck)
    }
}

fn note(best: &mut Candidates, mut range: (u64, BlockNumber)) {
    for place in best {
        match place {
            None => {
                *place = Some(range);
                return;
            }
            Some(kept) if range < *kept => core::mem::swap(kept, &mut range),
            Some(_) => {}
        }
    }
}
