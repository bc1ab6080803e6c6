//! The work of the arms, and the source of frames that an arm gives to the timed loops.

/// Allocate frames and free them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAlloc {
    /// What is timed.
    pub operation: Operation,
    /// Threads that do it at the same time, each with its own frames (but see [`Operation::Cross`] and
    /// [`Operation::FewFree`]).
    pub threads: usize,
    /// Frames that the allocator manages.
    pub frames: usize,
    /// Pairs, or frames that one thread holds at the same time.
    pub count: usize,
    /// Turns in one repetition.
    pub repeats: usize,
    /// The CPUs to pin the threads to.
    pub cpus: Vec<usize>,
}

/// The timed part of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Allocate one folio of this order and free it, `count` times.
    Pair(u8),
    /// Allocate `count` frames one by one and free them one by one in the same order: the loop of the
    /// published sweep.
    Sweep,
    /// Allocate `count` frames, free them, and time one half of it.
    Half(Half),
    /// Thread 0 allocates frames, thread 1 frees them.
    Cross,
    /// Every thread but the last allocates frames, and the last frees them all.
    FewFree,
    /// Work in a memory that each repetition fills anew.
    Crowded(Crowded),
}

/// One half of allocating and freeing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The half that is timed.
    pub timed: Timed,
    /// The order of the frees.
    pub back: Back,
    /// Whether bulk calls are used, where the allocator has them.
    pub bulk: bool,
}

/// A half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Allocating.
    Alloc,
    /// Freeing.
    Free,
}

/// The order of the frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The newest frame first.
    NewestFirst,
    /// A random order, the same in every repetition.
    Random,
}

/// Work in a memory that was filled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowded {
    /// Pairs while 90 % of the frames are in use and the free ones are scattered; for comparison, pairs in
    /// the empty memory.
    Pairs,
    /// The longest of a mix of `count` calls of several orders in such a memory.
    Mixed,
    /// Pairs while all frames but a handful are in use.
    Scarce,
    /// Frees of `count` frames in random order, which is most of the memory.
    Emptied,
    /// Batches of `count` frames, more than lists hold, in such a memory as that of [`Self::Pairs`].
    Batches,
    /// `count` times a free of a random frame and an allocation, each after other memory has filled the near caches, in
    /// such a memory.
    Cold,
}

/// A source of frames as one thread sees it. Frames are named as the allocator names them.
pub trait Frames: Send {
    /// The allocator's name of a frame.
    type Frame: Copy + Ord + Default + Send;

    /// Runs the timed loop on the thread that does the work.
    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R
    where
        Self: Sized,
    {
        body(self)
    }

    /// Allocates a folio of this order.
    fn take<const ORDER: u8>(&mut self) -> Option<Self::Frame>;

    /// Frees a folio that was allocated with the same order.
    fn give<const ORDER: u8>(&mut self, frame: Self::Frame);

    /// Allocates as many of `frames` as it can, from the start, and returns their number. One by one, unless
    /// the allocator has a bulk call.
    fn take_bulk(&mut self, frames: &mut [Self::Frame]) -> usize {
        take_each(self, frames)
    }

    /// Frees all of `frames`, the first one first.
    fn give_bulk(&mut self, frames: &[Self::Frame]) {
        give_each(self, frames);
    }

    /// Whether free frames may be scattered over all memory: otherwise each call would take milliseconds.
    fn bears_scattered_frames() -> bool {
        true
    }

    /// Free frames by the allocator's own count, if it keeps one.
    fn free_frames(&self) -> Option<u64> {
        None
    }
}

/// As [`Frames::take_bulk`], by one call for each frame.
pub(super) fn take_each<F: Frames + ?Sized>(source: &mut F, frames: &mut [F::Frame]) -> usize {
    for (taken, slot) in frames.iter_mut().enumerate() {
        match source.take::<0>() {
            Some(frame) => *slot = frame,
            None => return taken,
        }
    }
    frames.len()
}

/// As [`Frames::give_bulk`], by one call for each frame.
pub(super) fn give_each<F: Frames + ?Sized>(source: &mut F, frames: &[F::Frame]) {
    for &frame in frames {
        source.give::<0>(frame);
    }
}
