//! Arms of the experiment `page-alloc`.
//!
//! An arm gives one [`Frames`] per thread; the loops that are timed are written once, for all of them, in
//! [`measured`].

mod bitmap;
mod buddy_slab;
mod buddy_system;
mod linux;
pub mod measured;
mod quire;

use crate::bench::experiment::Arm;

/// Take frames and give them back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAlloc {
    /// What is timed.
    pub operation: Operation,
    /// Threads that do it at the same time, each for itself.
    pub threads: usize,
    /// Frames that the allocator manages.
    pub frames: usize,
    /// Pairs, or frames of one bulk, per thread.
    pub count: usize,
    /// How often one repetition does it.
    pub repeats: usize,
    /// The CPUs to pin the threads to.
    pub cpus: Vec<usize>,
}

/// The timed part of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take one frame, give it back.
    Pair,
    /// Take `count` frames.
    BulkAlloc,
    /// Give `count` frames back, newest first.
    BulkFree,
}

/// A source of frames as one thread sees it. Frames are named by a number of the allocator's choice.
pub trait Frames: Send {
    /// Runs the timed loop, on the thread that does the work.
    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R
    where
        Self: Sized,
    {
        body(self)
    }

    /// Takes a frame; `None` when there is none.
    fn alloc(&mut self) -> Option<usize>;

    /// Gives a frame of [`Self::alloc`] or [`Self::alloc_bulk`] back.
    fn free(&mut self, frame: usize);

    /// Fills `frames` from its start and returns how many were taken. One by one, unless the allocator has a call
    /// for many.
    fn alloc_bulk(&mut self, frames: &mut [usize]) -> usize {
        for (taken, slot) in frames.iter_mut().enumerate() {
            match self.alloc() {
                Some(frame) => *slot = frame,
                None => return taken,
            }
        }
        frames.len()
    }

    /// Gives all of `frames` back, newest first.
    fn free_bulk(&mut self, frames: &[usize]) {
        for &frame in frames.iter().rev() {
            self.free(frame);
        }
    }
}

/// The arms that ratios are taken against.
pub const PEERS: &[&str] = &[buddy_system::NAME, buddy_slab::NAME, bitmap::NAME];

/// Every arm. The checksum of a repetition is the number of frames that were taken and, in bulk, all different.
pub fn all() -> Vec<Box<dyn Arm<PageAlloc>>> {
    vec![
        Box::new(quire::Quire::default()),
        Box::new(linux::Linux),
        Box::new(buddy_system::BuddySystem),
        Box::new(buddy_slab::BuddySlab),
        Box::new(bitmap::Bitmap),
    ]
}
