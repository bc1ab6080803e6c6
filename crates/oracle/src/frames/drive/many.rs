//! Requests for many folios at once.

use hosted::raw::RawPages;
use std::collections::BTreeSet;

use quire::addr::{Frame, FrameRange, Order};
use quire::error::AllocError;
use quire::page_alloc::Gfp;

use super::{FrameLockstep, Outcome, gfp};
use crate::frames::{Class, FrameModel, Place};

/// The value of slots that must not change.
const TAKEN: Frame = Frame(u64::MAX);

impl FrameLockstep<'_> {
    pub(super) fn take_many(&mut self, class: Class, place: Place, order: u8, count: usize) -> Outcome {
        let order = Order::new(order).unwrap_or(Order::FRAME);
        let request = gfp(class, place);
        let mut out = vec![TAKEN; count];
        let got = self.allocator.alloc_bulk_raw(request, order, &mut out);
        if got > count {
            return Err(format!("{got} folios for {count}"));
        }
        if out[got..].iter().any(|&frame| frame != TAKEN) {
            return Err(format!("wrote behind the {got} folios that it gave"));
        }
        out[..got].iter().try_for_each(|&frame| self.took(request, frame, order))?;
        if got < count { self.fell_short(request, order, count - got) } else { Ok(()) }
    }

    /// Slot `n` is full before the call where bit `n % 64` of `full` is set.
    pub(super) fn fill_holes(
        &mut self,
        class: Class,
        place: Place,
        order: u8,
        (count, full): (usize, u64),
    ) -> Outcome {
        let order = Order::new(order).unwrap_or(Order::FRAME);
        let request = gfp(class, place);
        let is_full = |slot: usize| full >> (slot % 64) & 1 == 1;
        let mut slots: Vec<Option<Frame>> = (0..count).map(|slot| is_full(slot).then_some(TAKEN)).collect();
        let filled = self.allocator.fill_bulk_raw(request, order, &mut slots);
        let mut new = Vec::new();
        for (slot, &now) in slots.iter().enumerate() {
            match now {
                Some(TAKEN) if is_full(slot) => {}
                _ if is_full(slot) => return Err(format!("slot {slot} was full and holds {now:?} now")),
                Some(frame) => new.push(frame),
                None => {}
            }
        }
        if new.len() != filled {
            return Err(format!("{} slots were filled, said to be {filled}", new.len()));
        }
        new.into_iter().try_for_each(|frame| self.took(request, frame, order))?;
        let empty = slots.iter().filter(|slot| slot.is_none()).count();
        if empty > 0 { self.fell_short(request, order, empty) } else { Ok(()) }
    }

    /// A bulk request gave less than requested, which must be because no more was free.
    fn fell_short(&self, request: Gfp, order: Order, missing: usize) -> Outcome {
        let known = self.allowed(request).is_some();
        let error = if known { AllocError::OutOfMemory } else { AllocError::BadNode };
        let what = format!("{missing} more folios of {order:?}");
        self.refused_folio(request, order, error, &what)
    }

    pub(super) fn give_many(&mut self, which: usize, count: usize) -> Outcome {
        let Some((_, order)) = self.named(which) else { return Ok(()) };
        let unmapped =
            |&&(frame, other): &&(Frame, Order)| other == order && !self.model.is_mapped(frame, other);
        let same = self.live.iter().filter(unmapped).map(|(frame, _)| *frame);
        let frames: Vec<Frame> = same.take(count).collect();
        let got = self.allocator.free_bulk_raw(order, &frames);
        for (n, &frame) in frames.iter().enumerate() {
            let want = self.model.free(frame, order);
            let library = match got {
                Err((at, error)) if at == n => Err(error),
                _ => Ok(()),
            };
            if !FrameModel::same_answer(library, want) {
                return Err(format!("bulk free, folio {n}: answer {library:?}, want {want:?}"));
            }
        }
        let given: BTreeSet<Frame> = frames.iter().copied().collect();
        self.live.retain(|(frame, _)| !given.contains(frame));
        self.last = frames.last().map(|&frame| (frame, order)).or(self.last);
        Ok(())
    }

    /// Frees consecutive frames from the folio's first one on: folios as far as none is mapped, the last one
    /// perhaps in part.
    pub(super) fn give_frames(&mut self, which: usize, count: u64) -> Outcome {
        let Some((start, _)) = self.named(which) else { return Ok(()) };
        // The freed parts and their length; a frame that is free already ends them, and is refused.
        let (mut parts, mut len) = (Vec::new(), 0);
        while len < count {
            let at = start.add(len);
            match self.model.holder(at) {
                None => {
                    parts.push((at, Order::FRAME, 1));
                    len += 1;
                    break;
                }
                Some((folio, order)) => {
                    let frames = order.frames().min(count - len);
                    // Cutting a folio of blocks takes memory, which the model does not count.
                    let cut = frames < order.frames();
                    if self.model.is_mapped(folio, order) || cut && order >= Order::BLOCK {
                        break;
                    }
                    parts.push((folio, order, frames));
                    len += frames;
                }
            }
        }
        let got = self.allocator.free_range_raw(FrameRange::new(start, len));
        for (folio, order, frames) in parts {
            let want = if frames == order.frames() {
                self.model.free(folio, order)
            } else {
                self.model.split(folio);
                (0..frames).try_for_each(|at| self.model.free(folio.add(at), Order::FRAME))
            };
            let library = match got {
                Err((at, error)) if at as u64 == folio.0 - start.0 => Err(error),
                _ => Ok(()),
            };
            if !FrameModel::same_answer(library, want) {
                return Err(format!("{folio:?} of {len} frames from {start:?}: {library:?}, want {want:?}"));
            }
            if want.is_err() {
                break;
            }
            self.last = Some((folio, if frames == order.frames() { order } else { Order::FRAME }));
        }
        self.live = self.model.folios().collect();
        Ok(())
    }
}
