//! A platform whose reschedule points are real: where others wait for the processor they get it there, and the time between two
//! points can be looked at.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::Bare;
use quire::addr::{Frame, FrameRange, VirtRange};
use quire::arch::{ReadyClear, ReadyCopy};
use quire::cpu::CpuSet;
use quire::platform::{FlushRequest, Platform};
use rustix::thread::sched_yield;

use super::passed_on::passed_on;
use crate::bench::cycles;

/// How long a task has its processor before it gives it away at the next reschedule point.
pub const TURN_NS: f64 = 1e6;

/// What a reschedule point does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points {
    /// Nothing: nobody waits for the processor.
    Idle,
    /// Notes how long ago the last one was.
    Watched,
    /// Gives the processor to whoever waits for it, once the task has had its turn.
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
    /// The most that lay between two points.
    longest: AtomicU64,
    /// Points passed.
    passed: AtomicU64,
}

impl<'a> Scheduled<'a> {
    /// A machine whose points do this.
    pub fn on(bare: &'a Bare, points: Points) -> Self {
        let cpus = (0..bare.cpu_count()).map(|_| Clock::default()).collect();
        Self { bare, points, turn: (TURN_NS * cycles::hertz() / 1e9) as u64, cpus }
    }

    /// A long call of the running CPU begins, or goes on after others could run.
    pub fn begin(&self) {
        self.own().since.store(cycles::now(), Ordering::Relaxed);
    }

    /// As [`Self::begin`], and what was noted of this CPU before is forgotten.
    pub fn begin_anew(&self) {
        self.own().longest.store(0, Ordering::Relaxed);
        self.begin();
    }

    /// It has ended: what lies behind its last point counts, too.
    pub fn end(&self) {
        if self.points == Points::Watched {
            self.note(self.own());
        }
    }

    /// The most that lay between two points of one CPU, in nanoseconds; nothing where nobody watched.
    pub fn longest(&self) -> Option<f64> {
        let longest = self.cpus.iter().map(|clock| clock.longest.load(Ordering::Relaxed)).max();
        longest.filter(|_| self.points == Points::Watched).map(|counts| cycles::to_nanoseconds(counts as f64))
    }

    /// Points that were passed while somebody watched.
    pub fn passed(&self) -> u64 {
        self.cpus.iter().map(|clock| clock.passed.load(Ordering::Relaxed)).sum()
    }

    fn own(&self) -> &Clock {
        &self.cpus[self.bare.hosted().this_cpu().index()]
    }

    fn note(&self, clock: &Clock) {
        let now = cycles::now();
        let since = now.saturating_sub(clock.since.load(Ordering::Relaxed));
        let longest = clock.longest.load(Ordering::Relaxed).max(since);
        clock.longest.store(longest, Ordering::Relaxed);
        clock.since.store(now, Ordering::Relaxed);
    }

    /// Gives the processor away if the task has had its turn.
    fn share(&self, clock: &Clock) {
        if cycles::now().saturating_sub(clock.since.load(Ordering::Relaxed)) > self.turn {
            sched_yield();
            clock.since.store(cycles::now(), Ordering::Relaxed);
        }
    }
}

// SAFETY: every call that must keep a promise is passed on to a platform that keeps it; a point may block.
unsafe impl Platform for Scheduled<'_> {
    passed_on!();

    fn reschedule_point(&self) {
        match self.points {
            Points::Idle => {}
            Points::Watched => {
                let clock = self.own();
                clock.passed.store(clock.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                self.note(clock);
            }
            Points::Shared => self.share(self.own()),
        }
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.bare.fence_cpus(targets);
    }

    /// Who waits for a lock lets others run, too.
    fn relax(&self) {
        self.bare.relax();
        if self.points == Points::Watched {
            self.begin();
        }
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

    fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        self.bare.clear(frames, kernel);
    }

    fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        self.bare.copy(from, to, kernel);
    }

    fn now_ns(&self) -> u64 {
        self.bare.now_ns()
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
