//! Many folios in one call: one lock per block, not per folio, and no per-CPU list in between.

use super::PageAllocator;
use super::gfp::Gfp;
use super::search::Search;
use crate::addr::{Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::limits::BLOCK_FRAMES;
use crate::memmap::FrameMask;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::Pinned;

impl<P: Platform> PageAllocator<'_, P> {
    /// Fills `out` with folios of one order as far as memory and marks allow, neighbours next to each other; how many.
    /// Zero is an ordinary answer, for an empty `out` as well.
    pub fn alloc_bulk(&self, gfp: Gfp, order: Order, out: &mut [Frame]) -> usize {
        if out.is_empty() || self.platform.fail_allocation() {
            return 0;
        }
        let pinned = Pinned::new(self.platform);
        let cpu = pinned.cpu();
        let Ok(zones) = self.zones_for(cpu, gfp) else { return 0 };
        let wait = !self.cpus[cpu.index()].is_busy();
        let mut got = 0;
        for &number in zones.iter() {
            let zone = &self.zones[usize::from(number)];
            let before = got;
            while got < out.len() {
                let allowed = (zone.allowance(gfp.urgency, gfp.zone) >> order.get()) as usize;
                let chunk = (out.len() - got).min(allowed).min(BLOCK_FRAMES);
                let taken = if order >= Order::BLOCK {
                    let frame = if chunk > 0 { self.take_whole(zone, order, wait) } else { None };
                    frame.map_or(0, |frame| {
                        out[got] = frame;
                        1
                    })
                } else {
                    let home = cpu.index() % zone.shards.len();
                    let search = Search { mobility: gfp.mobility, order, home, wait };
                    self.store_take(zone, search, &mut out[got..got + chunk])
                };
                got += taken;
                if taken == 0 {
                    break;
                }
            }
            self.count_alloc(cpu, usize::from(number), ((got - before) as u64) << order.get());
            self.count_placed(cpu, gfp, zones, number.into(), ((got - before) as u64) << order.get());
        }
        got
    }

    /// Gives folios of one order back, straight to the store.
    ///
    /// # Errors
    /// The index of the first folio that was refused, and why; those before it are free, it and those after it are not.
    pub fn free_bulk(&self, order: Order, frames: &[Frame]) -> Result<(), (usize, FreeError)> {
        let freed = if order >= Order::BLOCK {
            frames
                .iter()
                .enumerate()
                .try_for_each(|(at, &frame)| self.free_blocks(frame, order).map_err(|error| (at, error)))
        } else {
            self.free_bulk_small(order, frames)
        };
        let count = freed.map_or_else(|(at, _)| at, |()| frames.len());
        self.count(Stat::Pgfree, (count as u64) << order.get());
        freed
    }

    fn free_bulk_small(&self, order: Order, frames: &[Frame]) -> Result<(), (usize, FreeError)> {
        let mut at = 0;
        while at < frames.len() {
            let number = frames[at].block();
            let Some(block) = self.memmap.get(number) else { return Err((at, FreeError::NotMemory)) };
            let mut mask = FrameMask::EMPTY;
            let mut refused = None;
            let start = at;
            block.lock(self.platform);
            while at < frames.len() && frames[at].block() == number && at - start < BLOCK_FRAMES {
                let folio = FrameMask::run(frames[at].index_in_block(), order.frames() as usize);
                let checked = match self.check_small(block, frames[at], order) {
                    Ok(()) if !mask.intersection(folio).is_empty() || self.is_listed(block, frames[at]) => {
                        Err(FreeError::DoubleFree)
                    }
                    other => other,
                };
                if let Err(error) = checked {
                    refused = Some((at, error));
                    break;
                }
                mask = mask.union(folio);
                at += 1;
            }
            if mask.is_empty() {
                block.unlock(self.platform);
            } else {
                for (first, count) in mask.runs() {
                    self.note_freed(FrameRange::new(number.first_frame().add(first as u64), count as u64));
                }
                self.store_put(number, block, mask);
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        Ok(())
    }
}
