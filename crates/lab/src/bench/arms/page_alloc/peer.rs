//! What an allocator of another crate pays in a kernel besides its own work: preemption is off during each call.

use std::sync::Arc;

use hosted::Pinned;
use rustix::mm::Advice;
use spin::mutex::SpinMutex;

use super::case::{Frames, PageAlloc};
use super::loops;
use crate::bench::experiment::{Prepared, Skip};
use crate::bench::linux::region::Region;

/// Memory for an allocator to manage. In huge pages of the host, as the memory of Quire's machine is: a kernel reaches all
/// of it through such.
pub(super) fn memory(bytes: usize) -> Result<Region, Skip> {
    let refused = |error| Skip::because("cannot map memory for the allocator", error);
    let region = Region::map(bytes).map_err(refused)?;
    region.advise(Advice::LinuxHugepage).map_err(refused)?;
    Ok(region)
}

/// An allocator of another crate that has no lock of its own.
pub(super) trait Unlocked: Send {
    /// Allocates a folio of this order.
    fn take<const ORDER: u8>(&mut self) -> Option<usize>;

    /// Frees a folio that was allocated with the same order.
    fn give<const ORDER: u8>(&mut self, frame: usize);

    /// See [`Frames::bears_scattered_frames`].
    fn bears_scattered_frames() -> bool {
        true
    }

    /// See [`Frames::free_frames`].
    fn free_frames(&self) -> Option<u64> {
        None
    }
}

/// Prepares a case on an allocator without lock: as it is for one thread, behind a spin lock for several.
pub(super) fn prepare_unlocked<'a, A: Unlocked + 'a>(
    case: &PageAlloc,
    build: impl Fn() -> Result<A, Skip> + 'a,
) -> Result<Box<dyn Prepared + 'a>, Skip> {
    if case.threads == 1 {
        return prepare(case, move || Ok(vec![Alone(build()?)]));
    }
    let threads = case.threads;
    prepare(case, move || {
        let shared = Arc::new(SpinMutex::<_>::new(build()?));
        Ok((0..threads).map(|_| Locked(Arc::clone(&shared))).collect())
    })
}

struct Alone<A>(A);

struct Locked<A>(Arc<SpinMutex<A>>);

impl<A: Unlocked> Frames for Alone<A> {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        self.0.take::<ORDER>()
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        self.0.give::<ORDER>(frame);
    }

    fn bears_scattered_frames() -> bool {
        A::bears_scattered_frames()
    }

    fn free_frames(&self) -> Option<u64> {
        self.0.free_frames()
    }
}

impl<A: Unlocked> Frames for Locked<A> {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        self.0.lock().take::<ORDER>()
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        self.0.lock().give::<ORDER>(frame);
    }

    fn bears_scattered_frames() -> bool {
        A::bears_scattered_frames()
    }

    fn free_frames(&self) -> Option<u64> {
        self.0.lock().free_frames()
    }
}

struct Peer<F>(F);

/// Prepares a case on allocators of another crate, one for each thread.
pub(super) fn prepare<'a, F: Frames + 'a>(
    case: &PageAlloc,
    mut build: impl FnMut() -> Result<Vec<F>, Skip> + 'a,
) -> Result<Box<dyn Prepared + 'a>, Skip> {
    loops::prepare(case, move || Ok(build()?.into_iter().map(Peer).collect()))
}

impl<F: Frames> Frames for Peer<F> {
    type Frame = F::Frame;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<F::Frame> {
        let _pinned = Pinned::begin();
        self.0.take::<ORDER>()
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: F::Frame) {
        let _pinned = Pinned::begin();
        self.0.give::<ORDER>(frame);
    }

    fn bears_scattered_frames() -> bool {
        F::bears_scattered_frames()
    }

    fn free_frames(&self) -> Option<u64> {
        self.0.free_frames()
    }
}
