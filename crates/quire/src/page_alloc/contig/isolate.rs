//! Ranges of blocks that are not free yet, but would be if what is in them moved elsewhere.
//!
//! A range is chosen by what the records of its blocks say: how much of it is used, and whether by movable memory. The best few
//! are tried. Each is *isolated* ([`isolated`](crate::page_alloc::store::isolated)), the lists are drained, and the caller's function moves what it
//! can; when all of the range is free it is taken, and when something stays, everything is given back as it is.
//! (Linux: `alloc_contig_range`.)
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::limits::{BLOCK_FRAMES, CONTIG_ROUNDS, CONTIG_TRIES};
use crate::memmap::BlockState;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::frames::owned::{Folio, FrameRun};
use crate::page_alloc::request::gfp::Gfp;
use crate::page_alloc::store::isolate::Shape;
use crate::page_alloc::store::whole::blocks_of;
use crate::page_alloc::store::zone::Zone;
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;
use crate::sync::Pinned;

/// Ranges to try, and how many frames would have to move, the cheapest first.
type Candidates = [Option<(u64, BlockNumber)>; CONTIG_TRIES];

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// As [`Self::alloc_contig`]; where no such range is free, one is emptied by `move_out`, which is shown the range, as
    /// often as [`CONTIG_ROUNDS`] says, and moves what it can. None of the range is handed out meanwhile.
    /// The caller holds no lock and is not pinned.
    ///
    /// # Errors
    /// As [`Self::alloc_contig`]; also [`AllocError::OutOfMemory`] where something in each of the best
    /// [`CONTIG_TRIES`] ranges cannot be moved, or the task is dying. What was moved until then stays where it is.
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
                let start = self.empty_one(gfp, shape, move_out)?;
                Ok(self.frames().run(FrameRange::new(start, u64::from(blocks) * BLOCK_FRAMES as u64)))
            }
            done => done,
        }
    }

    /// As [`Self::alloc`] for a folio of order 9 or more, in the same way.
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
            Err(AllocError::OutOfMemory) => {
                let blocks = blocks_of(order);
                let start = self.empty_one(gfp, Shape { blocks, align: blocks, order }, move_out)?;
                Ok(self.frames().folio(start, order))
            }
            done => done,
        }
    }

    /// Empties a range in one of the zones that the request allows, and takes it.
    #[cold]
    fn empty_one(
        &self,
        gfp: Gfp,
        shape: Shape,
        mut move_out: impl FnMut(FrameRange),
    ) -> Result<Frame, AllocError> {
        if self.platform().context() != Context::Task {
            return Err(AllocError::OutOfMemory);
        }
        let cpu = Pinned::new(self.platform()).cpu();
        let frames = u64::from(shape.blocks) * BLOCK_FRAMES as u64;
        for &number in self.requests().zones_for(cpu, gfp)?.iter() {
            let zone = &self.store().zones[usize::from(number)];
            while !zone.isolated.try_take() {
                self.platform().reschedule_point();
                self.platform().relax();
            }
            // Moving does not change how much is free. What the lists keep is.
            self.lists().drain_all();
            let allowed = zone.allowance(gfp.urgency, gfp.zone) >= frames;
            let found = if allowed { self.empty_in(zone, shape, &mut move_out) } else { None };
            zone.isolated.give_back();
            if let Some(first) = found {
                let pinned = Pinned::new(self.platform());
                self.store().count_alloc(pinned.cpu(), number.into(), frames);
                self.requests().count_placed(
                    pinned.cpu(),
                    gfp,
                    self.requests().zones_for(cpu, gfp)?,
                    number.into(),
                    frames,
                );
                return Ok(first.first_frame());
            }
        }
        Err(AllocError::OutOfMemory)
    }

    fn empty_in(
        &self,
        zone: &Zone,
        shape: Shape,
        move_out: &mut impl FnMut(FrameRange),
    ) -> Option<BlockNumber> {
        let candidates = self.candidates(zone, shape);
        for (_, first) in candidates.into_iter().flatten() {
            self.frames().in_store(|| self.store().isolate(zone, first, shape.blocks));
            let emptied = self.empty(zone, first, shape.blocks, move_out);
            self.frames().in_store(|| self.store().end_isolation(zone, first, shape, emptied));
            self.count(if emptied { Stat::ContigAllocSuccess } else { Stat::ContigAllocFail }, 1);
            if emptied {
                return Some(first);
            }
        }
        None
    }

    /// The ranges of which least would have to be moved.
    fn candidates(&self, zone: &Zone, shape: Shape) -> Candidates {
        let mut best: Candidates = [None; CONTIG_TRIES];
        for pool in zone.pools.iter() {
            let (first, count) = pool.lock(self.platform()).region();
            let end = first.0 + count;
            // The blocks from `start` to before `at` will do, and this is what they cost.
            let (mut start, mut cost) = (first.0.next_multiple_of(shape.align), 0);
            let mut at = start;
            while at < end {
                let Some(more) = self.store().cost_of(self.frames().memmap.block(BlockNumber(at))) else {
                    (start, cost) = ((at + 1).next_multiple_of(shape.align), 0);
                    at = start;
                    continue;
                };
                (at, cost) = (at + 1, cost + more);
                if at - start == shape.blocks {
                    note(&mut best, (cost, BlockNumber(start)));
                    let next = start + shape.align;
                    for gone in start..next.min(at) {
                        cost -= self
                            .store()
                            .cost_of(self.frames().memmap.block(BlockNumber(gone)))
                            .unwrap_or(0)
                            .min(cost);
                    }
                    (start, at) = (next, at.max(next));
                    cost = if at == next { 0 } else { cost };
                }
            }
        }
        best
    }

    /// Empties an isolated range, if what is in it can be moved.
    pub(in crate::page_alloc) fn empty(
        &self,
        zone: &Zone,
        first: BlockNumber,
        blocks: u32,
        move_out: &mut impl FnMut(FrameRange),
    ) -> bool {
        let range = FrameRange::new(first.first_frame(), u64::from(blocks) * BLOCK_FRAMES as u64);
        for round in 0..CONTIG_ROUNDS {
            self.lists().drain_all();
            let (aside, stuck) = self.frames().in_store(|| self.survey(zone, first, blocks));
            zone.isolated.aside.store(aside as i64, Ordering::Relaxed);
            if self.store().collected(zone, first) == blocks {
                return true;
            }
            if self.platform().is_dying() {
                return false;
            }
            // What was just handed out may be mapped in a moment.
            if !stuck {
                move_out(range);
            } else if round >= CONTIG_ROUNDS / 2 {
                return false;
            }
            self.platform().reschedule_point();
        }
        self.lists().drain_all();
        self.frames().in_store(|| self.survey(zone, first, blocks));
        self.store().collected(zone, first) == blocks
    }

    /// Collects blocks of the range that are entirely free. How many frames of it are free, and whether it has some
    /// that are neither mapped, free nor held: they cannot be moved.
    fn survey(&self, zone: &Zone, first: BlockNumber, blocks: u32) -> (u64, bool) {
        let (mut free, mut stuck) = (0, false);
        for number in (first.0..first.0 + blocks).map(BlockNumber) {
            self.store().merge_isolated(zone, number);
            let block = self.frames().memmap.block(number);
            block.lock(self.platform());
            if block.state() == BlockState::Small {
                let mapped = block.small_maps(self.platform()).nonzero();
                let nobodys = block.used.load().without(mapped).without(block.held.load());
                free += u64::from(block.free.load(Ordering::Relaxed));
                stuck |= !nobodys.is_empty();
            }
            block.unlock(self.platform());
        }
        (free + u64::from(self.store().collected(zone, first)) * BLOCK_FRAMES as u64, stuck)
    }
}

/// Keeps a range if it is among the best.
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
