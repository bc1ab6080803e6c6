//! What a recording costs the program, and a bound on it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, Mmap, MmapMut};
use nix::time::{ClockId, clock_gettime};

use super::RecordError;
use super::feed::Feed;
use super::perf::Followed;
use super::raw::{Raw, RawKind};

/// Faults and calls of one measurement.
const REPEATS: usize = 256;

/// The fastest of so many measurements counts.
const ROUNDS: usize = 9;

/// How often the records are read meanwhile: before a ring of the smallest size is full.
const READ_EVERY: Duration = Duration::from_micros(200);

const PAGE: usize = 4096;

/// How often the recorder compares the cost with the bound.
const TURN: Duration = Duration::from_millis(50);

/// Time of the program whose share may be spent at once.
const CREDIT_NS: f64 = 500e6;

/// Nanoseconds that a recording adds to a fault and to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// To a fault.
    pub fault_ns: f64,
    /// To a call.
    pub call_ns: f64,
}

/// What a recording has cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overhead {
    /// Of one event.
    pub costs: Costs,
    /// Recorded faults and calls.
    pub events: (u64, u64),
    /// Nanoseconds of all together.
    pub spent_ns: f64,
    /// Nanoseconds that the program ran on CPUs.
    pub program_ns: u64,
    /// Faults that were not recorded, since they would have cost too much.
    pub dropped: u64,
}

/// The times of faults and calls without a recording: before anything of one is attached.
pub(super) fn alone() -> Times {
    Times::fastest()
}

/// Measures the costs on this thread, whose events are opened for that and taken from the rings again. As
/// long as they are held, opening more events like them takes the kernel little time.
pub(super) fn measure(feed: &mut Feed, alone: &Times) -> Result<(Costs, impl Drop + use<>), RecordError> {
    feed.follow(Followed::Thread(0))?;
    feed.enable()?;
    let recorded = while_drained(feed, Times::fastest);
    let held = feed.forget_own();
    Ok((recorded.above(alone), held))
}

/// Does the work, recorded, while another thread reads the records as in a recording. None is left.
fn while_drained<T>(feed: &mut Feed, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let last = ended.load(Ordering::Acquire);
                if last {
                    feed.disable(true);
                }
                feed.drain(|_| ());
                if last {
                    return;
                }
                thread::sleep(READ_EVERY);
            }
        });
        let result = work();
        ended.store(true, Ordering::Release);
        result
    })
}

/// The fastest times of so many faults and calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    faults: Duration,
    calls: Duration,
}

impl Times {
    fn fastest() -> Times {
        let of = |work: fn() -> Duration| (0..ROUNDS).map(|_| work()).min().unwrap_or_default();
        Times { faults: of(faults), calls: of(calls) }
    }

    /// What each of these costs more than each of others.
    fn above(&self, others: &Times) -> Costs {
        let each = |these: Duration, others: Duration| {
            these.saturating_sub(others).as_nanos() as f64 / REPEATS as f64
        };
        Costs { fault_ns: each(self.faults, others.faults), call_ns: each(self.calls, others.calls) }
    }
}

/// The time of faults of single pages.
fn faults() -> Duration {
    let Ok(mut memory) = MmapMut::map_anon(REPEATS * PAGE) else { return Duration::ZERO };
    let _ = memory.advise(Advice::NoHugePage);
    on_cpu(|| memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1))
}

/// The time of calls that change a mapping: each has a record of that beside those of the call.
fn calls() -> Duration {
    let Ok(mut memory) = MmapMut::map_anon(PAGE) else { return Duration::ZERO };
    on_cpu(|| {
        for _ in 0..REPEATS / 2 {
            let changed = memory.make_read_only().and_then(Mmap::make_mut);
            let Ok(changed) = changed else { return };
            memory = changed;
        }
    })
}

/// The time that the work takes this thread on CPUs: other programs may run meanwhile.
fn on_cpu(work: impl FnOnce()) -> Duration {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    let since = now();
    work();
    now().saturating_sub(since)
}

/// Counts the cost of a recording, and stops recording faults while it is beyond the bound.
pub(super) struct Governor {
    /// The share of the program's time that may be spent.
    bound: f64,
    overhead: Overhead,
    /// Nanoseconds that may be spent now. Below zero, faults are not recorded.
    credit_ns: f64,
    /// The kernel's count of faults when the recorder ceased to record them.
    paused: Option<u64>,
    next: Instant,
}

impl Governor {
    pub(super) fn new(costs: Costs, bound: f64) -> Governor {
        let overhead = Overhead { costs, ..Overhead::default() };
        let (credit_ns, next) = (bound * CREDIT_NS, Instant::now());
        Governor { bound, overhead, credit_ns, paused: None, next }
    }

    /// Counts a record.
    pub(super) fn saw(&mut self, raw: &Raw) {
        match raw.kind {
            RawKind::Resolved { .. } => self.overhead.events.0 += 1,
            RawKind::Enter { .. } => self.overhead.events.1 += 1,
            _ => {}
        }
    }

    /// Compares the cost with the bound. Returns lost records, where a gap begins or ends.
    pub(super) fn turn(&mut self, feed: &Feed, now_ns: u64) -> Option<Raw> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + TURN;
        let (program_ns, spent_ns) = (self.overhead.program_ns, self.overhead.spent_ns);
        self.tally(feed);
        let earned = self.bound * (self.overhead.program_ns - program_ns) as f64;
        let spent = self.overhead.spent_ns - spent_ns;
        self.credit_ns = (self.credit_ns + earned - spent).min(self.bound * CREDIT_NS);
        match self.paused {
            None if self.credit_ns < 0.0 => {
                feed.set_faults(false);
                self.paused = Some(feed.faults());
                // A gap is marked where it begins, by the first record that it lacks.
                Some(self.lost(1, now_ns))
            }
            Some(before) if self.credit_ns > self.bound * CREDIT_NS / 2.0 => {
                feed.set_faults(true);
                self.paused = None;
                self.gap(feed, before, now_ns)
            }
            _ => None,
        }
    }

    /// Ends the recording.
    pub(super) fn end(mut self, feed: &Feed, now_ns: u64) -> (Overhead, Option<Raw>) {
        self.tally(feed);
        let lost = self.paused.and_then(|before| self.gap(feed, before, now_ns));
        (self.overhead, lost)
    }

    fn tally(&mut self, feed: &Feed) {
        let overhead = &mut self.overhead;
        let ((faults, calls), costs) = (overhead.events, overhead.costs);
        overhead.program_ns = overhead.program_ns.max(feed.time_ns());
        overhead.spent_ns = faults as f64 * costs.fault_ns + calls as f64 * costs.call_ns;
    }

    /// The rest of a gap.
    fn gap(&mut self, feed: &Feed, before: u64, now_ns: u64) -> Option<Raw> {
        let rest = feed.faults().saturating_sub(before).saturating_sub(1);
        (rest > 0).then(|| self.lost(rest, now_ns))
    }

    fn lost(&mut self, records: u64, time_ns: u64) -> Raw {
        self.overhead.dropped += records;
        Raw { time_ns, pid: 0, tid: 0, kind: RawKind::Lost { records } }
    }
}

impl fmt::Display for Overhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overhead { costs, spent_ns, program_ns, dropped, .. } = *self;
        write!(
            out,
            "  cost: {:.2} us a fault and {:.2} us a call, about {:.1} % of the {:.3} s that the program ran on CPUs",
            costs.fault_ns / 1e3,
            costs.call_ns / 1e3,
            100.0 * spent_ns / (program_ns.max(1) as f64),
            Duration::from_nanos(program_ns).as_secs_f64(),
        )?;
        if dropped > 0 {
            write!(
                out,
                "\n  NOT RECORDED: {dropped} faults, to stay within --max-overhead; counted as lost"
            )?;
        }
        Ok(())
    }
}
