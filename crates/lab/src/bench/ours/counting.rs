//! A platform that counts locks, for repetitions that are not timed.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{Bare, SyntheticFiles};
use quire::addr::{Frame, FrameRange, PhysAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushRequest, InterruptState, Platform, TouchHint};
use quire::rank::Rank;

/// The bare machine, with a count of the locks that were taken.
pub struct Counting<'a> {
    bare: &'a Bare,
    locks: AtomicU64,
}

impl<'a> Counting<'a> {
    /// No lock yet.
    pub fn new(bare: &'a Bare) -> Self {
        Self { bare, locks: AtomicU64::new(0) }
    }

    /// Locks taken so far, of every kind.
    pub fn locks(&self) -> u64 {
        self.locks.load(Ordering::Relaxed)
    }
}

// SAFETY: every call that must keep a promise is passed on to a platform that keeps it.
unsafe impl Platform for Counting<'_> {
    type Pager = SyntheticFiles;

    fn pager(&self) -> &SyntheticFiles {
        self.bare.pager()
    }

    fn pin(&self) -> CpuId {
        self.bare.pin()
    }

    fn unpin(&self) {
        self.bare.unpin();
    }

    fn interrupts_off(&self) -> InterruptState {
        self.bare.interrupts_off()
    }

    fn interrupts_restore(&self, state: InterruptState) {
        self.bare.interrupts_restore(state);
    }

    fn context(&self) -> Context {
        self.bare.context()
    }

    fn cpu_count(&self) -> usize {
        self.bare.cpu_count()
    }

    fn node_of(&self, cpu: CpuId) -> u8 {
        self.bare.node_of(cpu)
    }

    fn node_distance(&self, from: u8, to: u8) -> u8 {
        self.bare.node_distance(from, to)
    }

    fn online_cpus(&self) -> CpuSet {
        self.bare.online_cpus()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.bare.fence_cpus(targets);
    }

    fn relax(&self) {
        self.bare.relax();
    }

    fn reschedule_point(&self) {
        self.bare.reschedule_point();
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        self.bare.direct_map(addr)
    }

    fn load_root(&self, root: Option<Frame>) {
        self.bare.load_root(root);
    }

    fn flush_local(&self, request: &FlushRequest) {
        self.bare.flush_local(request);
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        self.bare.flush_remote_start(targets, request);
    }

    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.bare.flush_remote_wait(targets, request);
    }

    fn clear(&self, frames: FrameRange, hint: TouchHint) {
        self.bare.clear(frames, hint);
    }

    fn copy(&self, from: Frame, to: Frame) {
        self.bare.copy(from, to);
    }

    fn now_ns(&self) -> u64 {
        self.bare.now_ns()
    }

    fn invalidate_secondary(&self, root: Frame, range: VirtRange) {
        self.bare.invalidate_secondary(root, range);
    }

    fn lock_taken(&self, _rank: Rank) {
        self.locks.fetch_add(1, Ordering::Relaxed);
    }
}
