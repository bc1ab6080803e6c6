//! A platform that counts locks, for repetitions that are not timed. The machine's own work is excluded from
//! watched instructions.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::Bare;
use quire::addr::{Frame, FrameRange, VirtRange};
use quire::arch::{ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::CpuSet;
use quire::platform::{FlushRequest, FramePlatform, Platform, TablePlatform};
use quire::rank::Rank;

use super::instructions::Instructions;
use super::passed_on::{frames_passed_on, spaces_passed_on};

/// The bare machine, with a count of the locks that were taken, all by one thread at a time.
pub struct Counting<'a> {
    bare: &'a Bare,
    locks: AtomicU64,
    instructions: Option<Instructions>,
}

impl<'a> Counting<'a> {
    /// Counts locks from zero.
    pub fn locks_on(bare: &'a Bare) -> Self {
        Self { bare, locks: AtomicU64::new(0), instructions: None }
    }

    /// Also watches the verb instruction by instruction, up to `limit` of them.
    pub fn instructions_on(bare: &'a Bare, limit: u64) -> Self {
        Self { instructions: Some(Instructions::at_most(limit)), ..Self::locks_on(bare) }
    }

    /// Locks taken so far, of every kind.
    pub fn locks(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }

    /// The watcher of instructions, if there is one.
    pub fn instructions(&self) -> Option<&Instructions> {
        self.instructions.as_ref()
    }

    /// Runs the machine's own work, unwatched.
    fn by_itself<R>(&self, action: impl FnOnce(&'a Bare) -> R) -> R {
        self.bare.hosted().unwatched(|| action(self.bare))
    }
}

// SAFETY: C7: every call with a contract is passed on to `Bare`, which keeps it.
unsafe impl FramePlatform for Counting<'_> {
    frames_passed_on!();

    fn fence_cpus(&self, targets: &CpuSet) {
        self.by_itself(|bare| bare.fence_cpus(targets));
    }

    fn relax(&self) {
        self.by_itself(|bare| bare.relax());
    }

    fn reschedule_point(&self) {
        self.by_itself(|bare| bare.reschedule_point());
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        // SAFETY: invariant 1, by this function's contract.
        self.by_itself(|bare| unsafe { bare.clear(frames, kernel) });
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        // SAFETY: invariant 1, by this function's contract.
        self.by_itself(|bare| unsafe { bare.copy(from, to, kernel) });
    }

    fn now_ns(&self) -> u64 {
        self.by_itself(|bare| bare.now_ns())
    }

    fn lock_taken(&self, _rank: Rank) {
        // No locked instruction, since those of the library are counted.
        self.locks.store(self.locks() + 1, Ordering::Relaxed);
    }
}

// SAFETY: C7, H5: every flush is passed on to `Bare`, whose flushes are complete.
unsafe impl TablePlatform for Counting<'_> {
    fn processor_state(&self) -> ProcessorState {
        self.by_itself(|bare| bare.processor_state())
    }

    fn kernel_root(&self) -> Option<Frame> {
        self.by_itself(|bare| bare.kernel_root())
    }

    fn load_root(&self, root: Option<Frame>) {
        self.by_itself(|bare| bare.load_root(root));
    }

    fn flush_local(&self, request: &FlushRequest) {
        self.by_itself(|bare| bare.flush_local(request));
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        self.by_itself(|bare| bare.flush_remote_start(targets, request));
    }

    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.by_itself(|bare| bare.flush_remote_wait(targets, request));
    }

    fn flush_kernel(&self, range: quire::addr::VirtRange) {
        self.by_itself(|bare| bare.flush_kernel(range));
    }

    fn secondary_invalidate_start(&self, root: Frame, range: VirtRange) {
        self.by_itself(|bare| bare.secondary_invalidate_start(root, range));
    }

    fn secondary_invalidate_end(&self, root: Frame, range: VirtRange) {
        self.by_itself(|bare| bare.secondary_invalidate_end(root, range));
    }

    fn secondary_collapse_possible(&self, root: Frame, range: VirtRange) {
        self.by_itself(|bare| bare.secondary_collapse_possible(root, range));
    }
}

// SAFETY: C7: every call with a contract is passed on to `Bare`, which keeps it.
unsafe impl Platform for Counting<'_> {
    spaces_passed_on!();
}

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl hosted::raw::IsolatedMemory for Counting<'_> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.bare.holds(frames)
    }
}
