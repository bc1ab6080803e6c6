//! Frames by number, exact numbers of frames, and memory that comes and goes.

use hosted::raw::RawPages;
use quire::addr::{Frame, FrameRange, Order};
use quire::error::{AllocError, HotplugError};

use super::{FrameLockstep, Outcome, gfp};
use crate::frames::{BlockRun, Class, Place};

impl FrameLockstep<'_> {
    /// Enters a run of frames that the library handed out, folio by folio as the library made them.
    fn took_run(
        &mut self,
        run: FrameRange,
        mut took: impl FnMut(&mut Self, Frame, Order) -> Outcome,
    ) -> Outcome {
        let mut at = run.start;
        while at < run.end() {
            let frames = self.allocator.frames().folio_rest(at);
            let order = Order::new(frames.trailing_zeros() as u8).filter(|order| order.frames() == frames);
            let fits = order.filter(|order| at.add(order.frames()) <= run.end());
            let order = fits.ok_or_else(|| format!("{at:?} of {run:?} starts a folio of {frames} frames"))?;
            took(self, at, order)?;
            at = at.add(order.frames());
        }
        Ok(())
    }

    pub(super) fn take_exact(&mut self, class: Class, place: Place, frames: u64) -> Outcome {
        let request = gfp(class, place);
        match self.allocator.alloc_exact(request, frames) {
            Ok(run) => {
                let run = run.into_raw();
                if run.count != frames {
                    return Err(format!("{run:?} for {frames} frames"));
                }
                self.took_run(run, |lockstep, frame, order| lockstep.took(request, frame, order))
            }
            Err(AllocError::BadOrder) if frames == 0 => Ok(()),
            Err(error) => self.refused(request, error, &format!("{frames} frames in a row"), |nodes| {
                if let Some(order) = Order::new(frames.next_power_of_two().trailing_zeros() as u8)
                    && order < Order::BLOCK
                {
                    return self.has_room(request, order, nodes);
                }
                let want = BlockRun { blocks: frames.div_ceil(Order::BLOCK.frames()) as u32, align: 1 };
                self.room.run_fits(&self.model, want, request.zone, nodes).is_some()
            }),
        }
    }

    pub(super) fn take_at(&mut self, which: usize, from: u64, count: u64) -> Outcome {
        let range = self.shape.ranges[which % self.shape.ranges.len()].frames;
        // A little beyond the range's end as well.
        let start = range.start.add(from % (range.count + 100));
        let wanted = if self.shape.cuts {
            FrameRange::new(start, count)
        } else {
            FrameRange::new(start.block().first_frame(), count.next_multiple_of(Order::BLOCK.frames()))
        };
        match self.allocator.alloc_at(wanted) {
            Ok(run) if run.frames() == wanted => {
                self.took_run(run.into_raw(), |lockstep, frame, order| lockstep.took_by_number(frame, order))
            }
            Ok(run) => Err(format!("{run:?} for {wanted:?}")),
            Err(AllocError::BadOrder) if count == 0 => Ok(()),
            // Blocks at the ends that are cut take memory for their descriptors.
            Err(AllocError::OutOfMemory) if self.shape.cuts => Ok(()),
            Err(AllocError::NotFree) if !self.room.holds_blocks(&self.model, wanted) => Ok(()),
            Err(error) => Err(format!("refused {wanted:?}, which is free: {error:?}")),
        }
    }

    /// One of the parts of memory that come after start-up.
    pub(super) fn later(&self, which: usize) -> Option<FrameRange> {
        (!self.later.is_empty()).then(|| self.later[which % self.later.len()])
    }

    pub(super) fn add(&mut self, range: FrameRange) -> Outcome {
        let got = self.allocator.add_memory_raw(range, false);
        let there = self.model.has(range);
        let want = if there { Err(HotplugError::Present) } else { Ok(()) };
        if got != want {
            return Err(format!("adding {range:?}: answer {got:?}, want {want:?}"));
        }
        if !there {
            self.model.add(range);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, range: FrameRange) -> Outcome {
        match self.allocator.remove_memory(range, |_| ()) {
            Ok(()) if self.model.has(range) => {
                self.model.remove(range).map_err(|fault| format!("removed {range:?}: {fault}"))
            }
            Err(HotplugError::Absent) if !self.model.has(range) => Ok(()),
            // Descriptors and map counts of other blocks may stand in the range while folios are handed out.
            Err(HotplugError::InUse) if self.model.live() > 0 => Ok(()),
            got => Err(format!("removing {range:?}: {got:?}")),
        }
    }

    /// Removes what came after start-up, when nothing is handed out.
    pub(super) fn remove_later(&mut self) -> Outcome {
        let there = self.later.iter().copied().filter(|&range| self.model.has(range)).collect::<Vec<_>>();
        there.into_iter().try_for_each(|range| self.remove(range))
    }
}
