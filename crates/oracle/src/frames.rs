//! Model of a page allocator: the set of allocated folios, and the required answer to every free.

mod draw;
mod drive;
mod room;

pub use draw::{Class, FrameOp, FrameShape, Place, draw_frames};
pub use drive::FrameLockstep;
pub use room::{BlockRun, Room};

use std::collections::BTreeMap;
use std::fmt;

use quire::addr::{Frame, FrameRange, Order};
use quire::error::FreeError;

/// The allocated folios of a machine.
#[derive(Clone, Debug, Default)]
pub struct FrameModel {
    memory: Vec<FrameRange>,
    live: BTreeMap<u64, Order>,
    frames: u64,
    /// Leaves that map a frame, for frames with any.
    maps: BTreeMap<u64, u32>,
}

/// A fault of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameFault {
    /// The folio does not lie in one of the machine's ranges.
    Foreign(Frame, Order),
    /// The folio does not start at a multiple of its size.
    Misaligned(Frame, Order),
    /// The folio overlaps one that is allocated already (its start and order).
    Overlap(Frame, Order, Frame, Order),
    /// Free + cached + used + metadata is not all memory (invariant 8): the sum, and what it must be.
    NotConserved {
        /// The sum of the library's counters, in frames.
        sum: u64,
        /// The machine's memory, in frames.
        memory: u64,
    },
    /// The allocator's count of used frames differs from the number allocated.
    Used {
        /// The allocator's count, in frames.
        said: u64,
        /// Frames allocated and not freed.
        live: u64,
    },
}

impl fmt::Display for FrameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign(frame, order) => write!(f, "{frame:?} {order:?} is not this machine's memory"),
            Self::Misaligned(frame, order) => write!(f, "{frame:?} is no start of a folio of {order:?}"),
            Self::Overlap(frame, order, other, other_order) => {
                write!(f, "{frame:?} {order:?} overlaps {other:?} {other_order:?}, which is handed out")
            }
            Self::NotConserved { sum, memory } => {
                write!(f, "free + cached + used + metadata is {sum} frames, memory is {memory}")
            }
            Self::Used { said, live } => write!(f, "{said} frames said to be in use, {live} handed out"),
        }
    }
}

/// A machine's counters, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// In the block store.
    pub free: u64,
    /// On per-CPU lists.
    pub cached: u64,
    /// Handed out.
    pub used: u64,
    /// Holding the allocator's own records.
    pub metadata: u64,
}

impl FrameModel {
    /// A machine of these ranges, in ascending order, with nothing allocated. Ranges that touch are one.
    pub fn new(memory: &[FrameRange]) -> Self {
        let mut merged: Vec<FrameRange> = Vec::new();
        for range in memory {
            match merged.last_mut() {
                Some(last) if last.end() == range.start => last.count += range.count,
                _ => merged.push(*range),
            }
        }
        Self { memory: merged, ..Self::default() }
    }

    /// Memory comes.
    pub fn add(&mut self, range: FrameRange) {
        self.memory.push(range);
    }

    /// Memory goes that came before. Nothing of it may be handed out.
    ///
    /// # Errors
    /// The [`FrameFault`]: a folio that would lose its memory.
    pub fn remove(&mut self, range: FrameRange) -> Result<(), FrameFault> {
        self.memory.retain(|&there| there != range);
        let below = self.live.range(..range.end().0).next_back();
        match below {
            Some((&start, &order)) if start + order.frames() > range.start.0 => {
                Err(FrameFault::Foreign(Frame(start), order))
            }
            _ => Ok(()),
        }
    }

    /// Whether the range is memory that was added.
    pub fn has(&self, range: FrameRange) -> bool {
        self.memory.contains(&range)
    }

    /// Frames of the machine.
    pub fn memory(&self) -> u64 {
        self.memory.iter().map(|range| range.count).sum()
    }

    /// Allocated frames.
    pub fn live(&self) -> u64 {
        self.frames
    }

    /// The allocated folios, in order.
    pub fn folios(&self) -> impl Iterator<Item = (Frame, Order)> + '_ {
        self.live.iter().map(|(&start, &order)| (Frame(start), order))
    }

    /// The folio that holds `frame`.
    pub fn holder(&self, frame: Frame) -> Option<(Frame, Order)> {
        let (&start, &order) = self.live.range(..=frame.0).next_back()?;
        (frame.0 < start + order.frames()).then_some((Frame(start), order))
    }

    /// Whether any frame of the block at `first` is allocated.
    pub fn touches(&self, first: Frame) -> bool {
        let below = self.live.range(..first.0 + Order::BLOCK.frames()).next_back();
        below.is_some_and(|(&start, order)| start + order.frames() > first.0)
    }

    /// Whether a folio lies wholly in one range of the machine.
    pub fn is_memory(&self, start: Frame, order: Order) -> bool {
        let Some(last) = start.0.checked_add(order.frames() - 1) else { return false };
        self.memory.iter().any(|range| range.contains(start) && range.contains(Frame(last)))
    }

    /// The allocator has allocated a folio.
    ///
    /// # Errors
    /// The [`FrameFault`], if it may not.
    pub fn allocated(&mut self, start: Frame, order: Order) -> Result<(), FrameFault> {
        if !self.is_memory(start, order) {
            return Err(FrameFault::Foreign(start, order));
        }
        if !start.0.is_multiple_of(order.frames()) {
            return Err(FrameFault::Misaligned(start, order));
        }
        let below = self.live.range(..start.0 + order.frames()).next_back();
        if let Some((&other, &other_order)) = below
            && other + other_order.frames() > start.0
        {
            return Err(FrameFault::Overlap(start, order, Frame(other), other_order));
        }
        self.live.insert(start.0, order);
        self.frames += order.frames();
        Ok(())
    }

    /// Splits a folio into frames.
    pub fn split(&mut self, start: Frame) {
        let Some(order) = self.live.remove(&start.0) else { return };
        self.live.extend((0..order.frames()).map(|at| (start.0 + at, Order::FRAME)));
    }

    /// The required answer to a free of this folio; changes the model accordingly.
    ///
    /// # Errors
    /// As the library's. For a frame that holds metadata the library answers [`FreeError::InUse`], where the
    /// model, which does not know the metadata's frames, answers [`FreeError::DoubleFree`]; see
    /// [`Self::same_answer`].
    pub fn free(&mut self, start: Frame, order: Order) -> Result<(), FreeError> {
        if !self.memory.iter().any(|range| range.contains(start)) {
            return Err(FreeError::NotMemory);
        }
        match self.holder(start) {
            None => Err(FreeError::DoubleFree),
            Some(folio) if folio != (start, order) => Err(FreeError::WrongOrder),
            Some(_) if self.is_mapped(start, order) => Err(FreeError::InUse),
            Some(_) => {
                self.live.remove(&start.0);
                self.frames -= order.frames();
                Ok(())
            }
        }
    }

    /// The required answer to a free of so many consecutive folios of order 9; changes the model if all can
    /// be freed.
    ///
    /// # Errors
    /// As [`Self::free`], of the first that cannot.
    pub fn free_run(&mut self, start: Frame, blocks: u32) -> Result<(), FreeError> {
        let mut after = self.clone();
        let frame = |at: u32| start.add(u64::from(at) * Order::BLOCK.frames());
        (0..blocks).try_for_each(|at| after.free(frame(at), Order::BLOCK))?;
        *self = after;
        Ok(())
    }

    /// Whether a leaf maps any frame of the folio.
    pub fn is_mapped(&self, start: Frame, order: Order) -> bool {
        self.maps.range(start.0..start.0 + order.frames()).next().is_some()
    }

    /// How many leaves map the frame.
    pub fn mapcount(&self, frame: Frame) -> u32 {
        self.maps.get(&frame.0).copied().unwrap_or(0)
    }

    /// Adds a leaf to each frame of a run of allocated folios.
    pub fn map(&mut self, run: FrameRange) {
        for frame in run.start.0..run.end().0 {
            *self.maps.entry(frame).or_insert(0) += 1;
        }
    }

    /// Removes a leaf from each frame of the run. Frames of folios below a block's size become free with
    /// their last leaf, a folio of whole blocks only with the last leaf of all its frames. Returns the frames
    /// that became free.
    pub fn unmap(&mut self, run: FrameRange) -> u64 {
        let before = self.frames;
        for frame in run.start.0..run.end().0 {
            let left = self.maps[&frame] - 1;
            if left > 0 {
                self.maps.insert(frame, left);
                continue;
            }
            self.maps.remove(&frame);
            let (start, order) = self.holder(Frame(frame)).expect("a mapped frame is handed out");
            if order < Order::BLOCK {
                self.break_off(Frame(frame), start, order);
            } else if !self.is_mapped(start, order) {
                self.live.remove(&start.0);
                self.frames -= order.frames();
            }
        }
        before - self.frames
    }

    /// Takes one frame out of a folio; each remaining frame is then a folio of its own.
    fn break_off(&mut self, frame: Frame, start: Frame, order: Order) {
        self.live.remove(&start.0);
        let stay = (start.0..start.0 + order.frames()).filter(|&other| other != frame.0);
        self.live.extend(stay.map(|other| (other, Order::FRAME)));
        self.frames -= 1;
    }

    /// Whether the library's answer to a free equals the model's. A refusal must be a refusal. Reasons count
    /// as equal if they depend on facts that only the library knows (the place of metadata, whether a wrongly
    /// sized run starts in a free part, which absent frames share a block with present ones).
    pub fn same_answer(library: Result<(), FreeError>, model: Result<(), FreeError>) -> bool {
        use FreeError::{DoubleFree, InUse, NotMemory, WrongOrder};
        matches!(
            (library, model),
            (Ok(()), Ok(()))
                | (Err(NotMemory | InUse | WrongOrder), Err(NotMemory))
                | (Err(DoubleFree | InUse | WrongOrder | NotMemory), Err(DoubleFree))
                | (Err(WrongOrder | DoubleFree | NotMemory | InUse), Err(WrongOrder))
                | (Err(InUse), Err(InUse))
        )
    }

    /// Compares the library's counters with the machine (invariant 8) and with the allocated frames.
    ///
    /// # Errors
    /// The [`FrameFault`].
    pub fn check(&self, census: Census) -> Result<(), FrameFault> {
        let sum = census.free + census.cached + census.used + census.metadata;
        if sum != self.memory() {
            return Err(FrameFault::NotConserved { sum, memory: self.memory() });
        }
        if census.used != self.frames {
            return Err(FrameFault::Used { said: census.used, live: self.frames });
        }
        Ok(())
    }
}
