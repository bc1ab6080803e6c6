//! The bare machine with the guard of the per-CPU lists as a constant of its type, so that each arm is
//! compiled by itself.

use std::marker::PhantomData;

use hosted::Bare;
use hosted::raw::IsolatedMemory;
use quire::addr::{Frame, FrameRange};
use quire::arch::{ReadyClear, ReadyCopy};
use quire::cpu::CpuSet;
use quire::platform::{FramePlatform, ListGuard};

use super::passed_on::frames_passed_on;

/// A guard as a type.
pub trait Guard: Sync {
    /// The guard.
    const GUARD: ListGuard;
}

/// [`ListGuard::IrqOff`].
pub struct IrqOff;
/// [`ListGuard::TaskOnly`].
pub struct TaskOnly;

impl Guard for IrqOff {
    const GUARD: ListGuard = ListGuard::IrqOff;
}

impl Guard for TaskOnly {
    const GUARD: ListGuard = ListGuard::TaskOnly;
}

/// The bare machine, whose lists this guard protects.
#[repr(transparent)]
pub struct Guarding<G> {
    bare: Bare,
    guard: PhantomData<G>,
}

/// A platform that is the bare machine under another type.
pub trait OnBare: IsolatedMemory + Sized {
    /// The same machine.
    fn on(bare: &Bare) -> &Self;
}

impl OnBare for Bare {
    fn on(bare: &Bare) -> &Self {
        bare
    }
}

impl<G: Guard> OnBare for Guarding<G> {
    fn on(bare: &Bare) -> &Self {
        // SAFETY: H3: the type is transparent around the bare machine, and the borrow is the same.
        unsafe { &*std::ptr::from_ref(bare).cast() }
    }
}

// SAFETY: H1, H3: every call is passed on to a platform that keeps the contract.
unsafe impl<G: Guard> FramePlatform for Guarding<G> {
    const LIST_GUARD: ListGuard = G::GUARD;

    frames_passed_on!();

    fn fence_cpus(&self, targets: &CpuSet) {
        self.bare.fence_cpus(targets);
    }

    fn relax(&self) {
        self.bare.relax();
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        // SAFETY: invariant 1: the frames are the caller's, by this method's own contract, which is the same.
        unsafe { self.bare.clear(frames, kernel) };
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        // SAFETY: invariant 1: the target is the caller's, by this method's own contract, which is the same.
        unsafe { self.bare.copy(from, to, kernel) };
    }

    fn now_ns(&self) -> u64 {
        self.bare.now_ns()
    }
}

// SAFETY: H1: its memory is the bare machine's.
unsafe impl<G: Guard> IsolatedMemory for Guarding<G> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.bare.holds(frames)
    }
}

/// Runs code with `$platform` as the type of the bare machine with this guard.
macro_rules! with_guard {
    ($guard:expr, $platform:ident => $work:expr) => {
        match $guard {
            quire::page_alloc::ListGuard::Reentry => {
                type $platform = hosted::Bare;
                $work
            }
            quire::page_alloc::ListGuard::IrqOff => {
                type $platform =
                    $crate::bench::ours::guarding::Guarding<$crate::bench::ours::guarding::IrqOff>;
                $work
            }
            quire::page_alloc::ListGuard::TaskOnly => {
                type $platform =
                    $crate::bench::ours::guarding::Guarding<$crate::bench::ours::guarding::TaskOnly>;
                $work
            }
        }
    };
}

pub(crate) use with_guard;
