//! What a recording costs the program, and a bound on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, Mmap, MmapMut};
use nix::time::{ClockId, clock_gettime};

use super::RecordError;
use super::parse::Parser;
use super::perf::{Events, Followed, Source, Wanted};
use super::raw::{Raw, RawKind};
use super::sink::Sink;

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

/// Measures the costs on this thread, whose events are opened for that and taken from the rings again. As
/// long as they are held, opening more events like them takes the kernel little time.
pub(super) fn measure(
    events: &mut Events,
    wanted: &[Wanted],
) -> Result<(Costs, impl Drop + use<>), RecordError> {
    let plain = Times::fastest();
    events.follow(wanted, Followed::Thread(0), true)?;
    let recorded = while_drained(&mut events.sinks, Times::fastest);
    let held: Vec<_> = events.sinks.iter_mut().flat_map(Sink::take_events).collect();
    events.sources.clear();
    Ok((recorded.above(&plain), held))
}

/// Does the work, recorded, while another thread reads the records as in a recording. None is left.
fn while_drained<T>(sinks: &mut [Sink], work: impl FnOnce() -> T) -> T {
    let ignore = Parser::new(HashMap::new(), None);
    sinks.iter().for_each(|sink| sink.enable(|_| true));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let last = ended.load(Ordering::Acquire);
                if last {
                    sinks.iter().for_each(|sink| sink.disable(|_| true));
                }
                sinks.iter_mut().for_each(|sink| sink.drain(&ignore, |_| ()));
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
struct Times {
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
    pub(super) fn turn(&mut self, sinks: &[Sink], now_ns: u64) -> Option<Raw> {
        if Instant::now() < self.next {
            return None;
        }
        self.next = Instant::now() + TURN;
        let (program_ns, spent_ns) = (self.overhead.program_ns, self.overhead.spent_ns);
        self.tally(sinks);
        let earned = self.bound * (self.overhead.program_ns - program_ns) as f64;
        let spent = self.overhead.spent_ns - spent_ns;
        self.credit_ns = (self.credit_ns + earned - spent).min(self.bound * CREDIT_NS);
        match self.paused {
            None if self.credit_ns < 0.0 => {
                sinks.iter().for_each(|sink| sink.disable(Source::is_fault));
                self.paused = Some(counted(sinks, Source::Faults));
                // A gap is marked where it begins, by the first record that it lacks.
                Some(self.lost(1, now_ns))
            }
            Some(before) if self.credit_ns > self.bound * CREDIT_NS / 2.0 => {
                sinks.iter().for_each(|sink| sink.enable(Source::is_fault));
                self.paused = None;
                self.gap(sinks, before, now_ns)
            }
            _ => None,
        }
    }

    /// Ends the recording.
    pub(super) fn end(mut self, sinks: &[Sink], now_ns: u64) -> (Overhead, Option<Raw>) {
        self.tally(sinks);
        let lost = self.paused.and_then(|before| self.gap(sinks, before, now_ns));
        (self.overhead, lost)
    }

    fn tally(&mut self, sinks: &[Sink]) {
        let overhead = &mut self.overhead;
        let ((faults, calls), costs) = (overhead.events, overhead.costs);
        overhead.program_ns = overhead.program_ns.max(counted(sinks, Source::Time));
        overhead.spent_ns = faults as f64 * costs.fault_ns + calls as f64 * costs.call_ns;
    }

    /// The rest of a gap.
    fn gap(&mut self, sinks: &[Sink], before: u64, now_ns: u64) -> Option<Raw> {
        let rest = counted(sinks, Source::Faults).saturating_sub(before).saturating_sub(1);
        (rest > 0).then(|| self.lost(rest, now_ns))
    }

    fn lost(&mut self, records: u64, time_ns: u64) -> Raw {
        self.overhead.dropped += records;
        Raw { time_ns, pid: 0, tid: 0, kind: RawKind::Lost { records } }
    }
}

fn counted(sinks: &[Sink], source: Source) -> u64 {
    sinks.iter().map(|sink| sink.counted(source)).sum()
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
