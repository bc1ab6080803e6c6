//! A platform whose reschedule points are real: where others wait for the processor they get it there, and the time between two
//! points can be looked at.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hosted::Bare;
use quire::addr::{Frame, FrameRange, VirtRange};
use quire::arch::{ReadyClear, ReadyCopy};
use quire::cpu::CpuSet;
use quire::platform::{FlushRequest, FramePlatform, Platform, TablePlatform};
use rustix::thread::sched_yield;

use super::passed_on::{frames_passed_on, spaces_passed_on};
use super::stretches::{self, Between};
use crate::host::cycles;

/// How long a task has its processor before it gives it away at the next reschedule point.
pub const TURN_NS: f64 = 1e6;

/// What a reschedule point does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Nothing: no thread waits for the processor.
    Idle,
    /// Notes how long ago the last one was.
    Watched,
    /// Yields the processor once the task has had its turn.
    Shared,
}

/// The bare machine with reschedule points.
pub struct Scheduled<'a> {
    bare: &'a Bare,
    points: Points,
    /// Counts of the time-stamp counter in a turn.
    turn: u64,
    cpus: Vec<Clock>,
}

/// What one CPU knows; only the thread that is the CPU stores to it.
#[derive(Default)]
#[repr(align(128))]
struct Clock {
    /// When its task passed the last point, or got the processor.
    since: AtomicU64,
    /// One more than the first frame that was cleared since; 0 where none was.
    cleared: AtomicU64,
    /// Points passed.
    passed: AtomicU64,
    /// What lay between points, in counts of the time-stamp counter.
    noted: Mutex<Vec<Between<u64>>>,
}

impl<'a> Scheduled<'a> {
    /// A machine whose points do this.
    pub fn on(bare: &'a Bare, points: Points) -> Self {
        let cpus = (0..bare.cpu_count()).map(|_| Clock::default()).collect();
        Self { bare, points, turn: (TURN_NS * cycles::hertz() / 1e9) as u64, cpus }
    }

    /// A long call of the running CPU begins, or goes on after others could run.
    pub fn begin(&self) {
        self.own().begin();
    }

    /// As [`Self::begin`], and what was noted of this CPU before is forgotten.
    pub fn begin_anew(&self) {
        self.own().noted().clear();
        self.begin();
    }

    /// It has ended: what lies behind its last point counts, too.
    pub fn end(&self) {
        if self.points == Points::Watched {
            self.own().note();
        }
    }

    /// The most that lay between two points of one CPU, in nanoseconds; `None` where points were not watched.
    pub fn longest(&self) -> Option<f64> {
        stretches::longest(&self.stretches())
    }

    /// What lay between points of one CPU and the next, of each CPU; empty where points were not watched.
    pub fn stretches(&self) -> Vec<Between> {
        let of = |clock: &Clock| clock.noted().iter().map(Between::timed).collect::<Vec<_>>();
        self.cpus.iter().flat_map(of).collect()
    }

    /// Points that were passed while they were watched.
    pub fn passed(&self) -> u64 {
        self.cpus.iter().map(|clock| clock.passed.load(Ordering::Relaxed)).sum()
    }

    fn own(&self) -> &Clock {
        &self.cpus[self.bare.hosted().this_cpu().index()]
    }

    /// Gives the processor away if the task has had its turn.
    fn share(&self, clock: &Clock) {
        if clock.since() > self.turn {
            sched_yield();
            clock.begin();
        }
    }
}

impl Clock {
    fn begin(&self) {
        self.cleared.store(0, Ordering::Relaxed);
        self.since.store(cycles::now(), Ordering::Relaxed);
    }

    /// Counts since the task passed the last point.
    fn since(&self) -> u64 {
        cycles::now().saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// Only the first of them since the last point says which stretch it is.
    fn clears(&self, first: Frame) {
        if self.cleared.load(Ordering::Relaxed) == 0 {
            self.cleared.store(first.0 + 1, Ordering::Relaxed);
        }
    }

    /// A stretch has ended; the next one begins when this one is noted.
    fn note(&self) {
        let length = self.since();
        let cleared = self.cleared.load(Ordering::Relaxed).checked_sub(1).map(Frame);
        self.noted().push(Between { cleared, length });
        self.begin();
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Vec<Between<u64>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: C7: every call with a contract is passed on to `Bare`, which keeps it; a reschedule point may block.
unsafe impl FramePlatform for Scheduled<'_> {
    frames_passed_on!();

    fn reschedule_point(&self) {
        match self.points {
            Points::Idle => {}
            Points::Watched => {
                let clock = self.own();
                clock.passed.store(clock.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                clock.note();
            }
            Points::Shared => self.share(self.own()),
        }
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.bare.fence_cpus(targets);
    }

    /// A task that waits for a lock lets others run, too.
    fn relax(&self) {
        self.bare.relax();
        if self.points == Points::Watched {
            self.begin();
        }
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        if self.points == Points::Watched {
            self.own().clears(frames.start);
        }
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.bare.clear(frames, kernel) };
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.bare.copy(from, to, kernel) };
    }

    fn now_ns(&self) -> u64 {
        self.bare.now_ns()
    }
}

// SAFETY: C7, H5: every flush is passed on to `Bare`, whose flushes are complete.
unsafe impl TablePlatform for Scheduled<'_> {
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

    fn flush_kernel(&self, range: quire::addr::VirtRange) {
        self.bare.flush_kernel(range);
    }

    fn secondary_invalidate_start(&self, root: Frame, range: VirtRange) {
        self.bare.secondary_invalidate_start(root, range);
    }

    fn secondary_invalidate_end(&self, root: Frame, range: VirtRange) {
        self.bare.secondary_invalidate_end(root, range);
    }

    fn secondary_collapse_possible(&self, root: Frame, range: VirtRange) {
        self.bare.secondary_collapse_possible(root, range);
    }
}

// SAFETY: C7: every call with a contract is passed on to `Bare`, which keeps it.
unsafe impl Platform for Scheduled<'_> {
    spaces_passed_on!();
}
