//! A platform with real reschedule points: they yield the processor to waiting threads, and the time between
//! two points can be watched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hosted::Bare;
use quire::addr::{Frame, FrameRange, VirtRange};
use quire::arch::{ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::CpuSet;
use quire::platform::{FlushRequest, FramePlatform, Platform, TablePlatform};
use rustix::thread::sched_yield;

use super::passed_on::{frames_passed_on, spaces_passed_on};
use super::stretches::{self, Between};
use crate::host::{cycles, vectors};

/// The turn of a task, after which it yields at the next reschedule point.
pub const TURN_NS: f64 = 1e6;

/// The work of a reschedule point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Nothing: no thread waits for the processor.
    Idle,
    /// Records the time since the last point.
    Watched,
    /// Yields the processor after the task's turn.
    Shared,
}

/// The bare machine with reschedule points.
pub struct Scheduled<'a> {
    bare: &'a Bare,
    points: Points,
    /// Whether a clear that uses vector registers pays for them.
    saves: bool,
    /// Counts of the time-stamp counter in a turn.
    turn: u64,
    cpus: Vec<Clock>,
}

/// The state of one CPU; only its thread stores to it.
#[derive(Default)]
#[repr(align(128))]
struct Clock {
    /// The time at which its task passed the last point, or got the processor.
    since: AtomicU64,
    /// One more than the first frame that was cleared since; 0 where none was.
    cleared: AtomicU64,
    /// Points passed.
    passed: AtomicU64,
    /// The stretches between points, in TSC counts.
    noted: Mutex<Vec<Between<u64>>>,
}

impl<'a> Scheduled<'a> {
    /// The machine with these points.
    pub fn on(bare: &'a Bare, points: Points) -> Self {
        let cpus = (0..bare.cpu_count()).map(|_| Clock::default()).collect();
        Self { bare, points, saves: false, turn: (TURN_NS * cycles::hertz() / 1e9) as u64, cpus }
    }

    /// The same machine, where a clear that uses vector registers saves the program's as a kernel must.
    #[must_use]
    pub fn with_saved_vectors(self, saves: bool) -> Self {
        Self { saves, ..self }
    }

    /// Starts a long call of the running CPU, or resumes it after a yield.
    pub fn begin(&self) {
        self.own().begin();
    }

    /// As [`Self::begin`], and drops what this CPU has recorded.
    pub fn begin_anew(&self) {
        self.own().noted().clear();
        self.begin();
    }

    /// Ends the call: the stretch after its last point counts too.
    pub fn end(&self) {
        if self.points == Points::Watched {
            self.own().note();
        }
    }

    /// The longest stretch between two points of one CPU, in nanoseconds; `None` where points were not
    /// watched.
    pub fn longest(&self) -> Option<f64> {
        stretches::longest(&self.stretches())
    }

    /// The stretches between points, CPU by CPU; empty where points were not watched.
    pub fn stretches(&self) -> Vec<Between> {
        let of = |clock: &Clock| clock.noted().iter().map(Between::timed).collect::<Vec<_>>();
        self.cpus.iter().flat_map(of).collect()
    }

    /// Points that were passed while watched.
    pub fn passed(&self) -> u64 {
        self.cpus.iter().map(|clock| clock.passed.load(Ordering::Relaxed)).sum()
    }

    fn own(&self) -> &Clock {
        &self.cpus[self.bare.hosted().this_cpu().index()]
    }

    /// Yields the processor if the task has had its turn.
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

    /// TSC counts since the last point.
    fn since(&self) -> u64 {
        cycles::now().saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// The first clear since the last point identifies the stretch.
    fn clears(&self, first: Frame) {
        if self.cleared.load(Ordering::Relaxed) == 0 {
            self.cleared.store(first.0 + 1, Ordering::Relaxed);
        }
    }

    /// Ends a stretch; the next one starts after it is recorded.
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

    /// A task that waits for a lock yields too.
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
        let clear = || unsafe { self.bare.clear(frames, kernel) };
        if self.saves && kernel.kernel().uses_vectors() { vectors::saved(clear) } else { clear() }
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
    fn processor_state(&self) -> ProcessorState {
        self.bare.processor_state()
    }

    fn kernel_root(&self) -> Option<Frame> {
        self.bare.kernel_root()
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

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl hosted::raw::IsolatedMemory for Scheduled<'_> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.bare.holds(frames)
    }
}
