//! The same machine as a kernel would see it: without checks in each call.
//!
//! A kernel's platform is zero-sized: the running CPU's number is one load, pinning counts the depth at which
//! preemption is off, and there is no failure plan and no checker of locks and freed frames to call. [`Bare`] is that platform on a hosted machine: measurements
//! on it show the library, not the machine's checks.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;

use quire::addr::{Frame, FrameRange, PhysAddr, VirtRange};
use quire::arch::{Caches, CpuFeatures, ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushRequest, FramePlatform, Platform, TablePlatform};

use crate::files::SyntheticFiles;
use crate::machine::Hosted;
use crate::task::Task;

/// A hosted machine without its checks.
#[repr(transparent)]
pub struct Bare(Hosted);

impl Hosted {
    /// The machine as a kernel would see it: no failure is injected, no rank and no freed frame checked.
    ///
    /// # Safety
    /// All code that uses it runs inside [`Hosted::run_on`] or [`Hosted::spawn_cpus`] of this machine, with
    /// no other machine in between: the thread's CPU is not checked.
    pub unsafe fn bare(&self) -> &Bare {
        // SAFETY: H3 is the caller's promise; `Bare` is transparent around `Hosted`, and the borrow is the same.
        unsafe { &*std::ptr::from_ref(self).cast::<Bare>() }
    }
}

/// Preemption of the running thread is off as long as this lives, at the price of [`Bare`]'s `pin` and `unpin`:
/// for measuring allocators that know no platform.
pub struct Pinned(PhantomData<*const ()>);

impl Pinned {
    /// Turns it off.
    #[inline(always)]
    pub fn begin() -> Self {
        Task::with(Task::pinned);
        Self(PhantomData)
    }
}

impl Drop for Pinned {
    #[inline(always)]
    fn drop(&mut self) {
        Task::with(Task::unpinned);
    }
}

impl Bare {
    /// The machine with its checks.
    pub fn hosted(&self) -> &Hosted {
        &self.0
    }
}

// SAFETY: every call with a contract is the machine's own, except `pin`: its precondition, that the calling thread is a
// CPU of this machine (H3), is the contract of `Hosted::bare`. Calls that only watch are left out: a kernel has no checker
// of locks, of freed frames or of reschedule points.
unsafe impl FramePlatform for Bare {
    #[inline(always)]
    fn pin(&self) -> CpuId {
        Task::with(|task| {
            task.pinned();
            task.cpu()
        })
    }

    #[inline(always)]
    fn unpin(&self) {
        Task::with(Task::unpinned);
    }

    #[cfg(feature = "published")]
    #[inline]
    fn interrupts_off(&self) -> bool {
        self.0.interrupts_off()
    }

    #[cfg(feature = "published")]
    #[inline]
    fn interrupts_restore(&self, were_on: bool) {
        self.0.interrupts_restore(were_on);
    }

    #[inline]
    fn context(&self) -> Context {
        self.0.context()
    }

    fn might_sleep(&self) {
        self.0.might_sleep();
    }

    fn interrupts_enabled(&self) -> Option<bool> {
        self.0.interrupts_enabled()
    }

    fn stack_left(&self) -> Option<usize> {
        self.0.stack_left()
    }

    #[inline]
    fn cpu_count(&self) -> usize {
        self.0.cpu_count()
    }

    fn node_of(&self, cpu: CpuId) -> u8 {
        self.0.node_of(cpu)
    }

    fn node_distance(&self, from: u8, to: u8) -> u8 {
        self.0.node_distance(from, to)
    }

    fn online_cpus(&self) -> CpuSet {
        self.0.online_cpus()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.0.fence_cpus(targets);
    }

    fn relax(&self) {
        self.0.relax();
    }

    #[inline]
    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        self.0.direct_map(addr)
    }

    fn features(&self) -> CpuFeatures {
        self.0.features()
    }

    fn caches(&self) -> Caches {
        self.0.caches()
    }

    #[inline(always)]
    fn vectors_begin(&self) -> bool {
        true
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        // SAFETY: K1: this function's contract is the same: the caller owns the target.
        unsafe { self.0.clear(frames, kernel) };
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        // SAFETY: K1: this function's contract is the same: the caller owns the target.
        unsafe { self.0.copy(from, to, kernel) };
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

// SAFETY: every call is the machine's own, whose flushes are complete when they return (H5).
unsafe impl TablePlatform for Bare {
    fn processor_state(&self) -> ProcessorState {
        self.0.processor_state()
    }

    fn kernel_root(&self) -> Option<Frame> {
        self.0.kernel_root()
    }

    fn load_root(&self, root: Option<Frame>) {
        self.0.load_root(root);
    }

    fn flush_local(&self, request: &FlushRequest) {
        self.0.flush_local(request);
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        self.0.flush_remote_start(targets, request);
    }

    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.0.flush_remote_wait(targets, request);
    }

    #[cfg(feature = "published")]
    fn flush_kernel(&self, range: VirtRange) {
        self.0.flush_kernel(range);
    }

    fn secondary_invalidate_start(&self, root: Frame, range: VirtRange) {
        self.0.secondary_invalidate_start(root, range);
    }

    fn secondary_invalidate_end(&self, root: Frame, range: VirtRange) {
        self.0.secondary_invalidate_end(root, range);
    }

    fn secondary_collapse_possible(&self, root: Frame, range: VirtRange) {
        self.0.secondary_collapse_possible(root, range);
    }
}

// SAFETY: C7: every call is passed on to the machine, with the same arguments.
unsafe impl Platform for Bare {
    type Pager = SyntheticFiles;

    fn pager(&self) -> &SyntheticFiles {
        self.0.files()
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        self.0.wait(word, seen);
    }

    fn wake(&self, word: &AtomicU32) {
        self.0.wake(word);
    }
}
