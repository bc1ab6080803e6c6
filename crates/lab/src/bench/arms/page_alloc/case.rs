//! What the arms are asked to do, and what an arm gives to the timed loops.

/// Take frames and give them back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAlloc {
    /// What is timed.
    pub operation: Operation,
    /// Threads that do it at the same time, each for itself (but see [`Operation::Cross`]).
    pub threads: usize,
    /// Frames that the allocator manages.
    pub frames: usize,
    /// Pairs, or frames that one thread holds at once.
    pub count: usize,
    /// How often one repetition does it.
    pub repeats: usize,
    /// The CPUs to pin the threads to.
    pub cpus: Vec<usize>,
}

/// The timed part of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take one folio of this order, give it back, `count` times.
    Pair(u8),
    /// Take `count` frames one by one, give them back one by one in the same order: the loop of the published sweep.
    Sweep,
    /// Take `count` frames, give them back, and time one half of it.
    Half(Half),
    /// Thread 0 takes frames, thread 1 gives them back.
    Cross,
    /// Something in a memory that each repetition fills anew.
    Crowded(Crowded),
}

/// Half of taking frames and giving them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The half that is timed.
    pub timed: Timed,
    /// The order in which the frames go back.
    pub back: Back,
    /// Whether the allocator's calls for many frames are used, where it has them.
    pub bulk: bool,
}

/// Which half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Taking.
    Alloc,
    /// Giving back.
    Free,
}

/// The order in which frames go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The frame that was taken last goes first.
    NewestFirst,
    /// A random order, the same in every repetition.
    Random,
}

/// What is done in a memory that was filled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowded {
    /// Pairs while 90 % of the frames are in use and the free ones are scattered; beside them, pairs in the same
    /// memory when it was empty.
    Pairs,
    /// A mix of `count` calls of several orders in such a memory; the longest of them.
    Mixed,
    /// Pairs while all frames but a handful are in use.
    Scarce,
}

/// A source of frames as one thread sees it. Frames are named as the allocator names them.
pub trait Frames: Send {
    /// The allocator's name of a frame.
    type Frame: Copy + Ord + Default + Send;

    /// Runs the timed loop, on the thread that does the work.
    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R
    where
        Self: Sized,
    {
        body(self)
    }

    /// Takes a folio of an order; `None` when there is none.
    fn take<const ORDER: u8>(&mut self) -> Option<Self::Frame>;

    /// Gives a folio back that was taken with the same order.
    fn give<const ORDER: u8>(&mut self, frame: Self::Frame);

    /// Fills `frames` from its start and returns how many were taken. One by one, unless the allocator has a call
    /// for many.
    fn take_bulk(&mut self, frames: &mut [Self::Frame]) -> usize {
        take_each(self, frames)
    }

    /// Gives all of `frames` back, the first one first.
    fn give_bulk(&mut self, frames: &[Self::Frame]) {
        give_each(self, frames);
    }

    /// How many frames are free by the allocator's own account, if it keeps one.
    fn free_frames(&self) -> Option<u64> {
        None
    }
}

/// Fills `frames` from its start by a call for each, and returns how many were taken.
pub(super) fn take_each<F: Frames + ?Sized>(source: &mut F, frames: &mut [F::Frame]) -> usize {
    for (taken, slot) in frames.iter_mut().enumerate() {
        match source.take::<0>() {
            Some(frame) => *slot = frame,
            None => return taken,
        }
    }
    frames.len()
}

/// Gives all of `frames` back by a call for each, the first one first.
pub(super) fn give_each<F: Frames + ?Sized>(source: &mut F, frames: &[F::Frame]) {
    for &frame in frames {
        source.give::<0>(frame);
    }
}
