//! Interrupts that arrive inside the calls of a task, by signals of a timer.

#![allow(unsafe_code)]

use hosted::raw::RawPages;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig};
use quire::addr::Order;
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, ListGuard, PageAllocator};
use quire::platform::Context;
use quire::stats::Stat;

use crate::bench::experiment::{Arm, Better, Metric, Prepared, Sample, Skip};
use crate::bench::ours::guarding::{OnBare, with_guard};
use crate::bench::ours::guards::{self, Guarded};
use crate::bench::stats::Summary;
use crate::host::cycles::{self, Span};

/// Pairs of a task, into which interrupts arrive that make pairs too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// What arrives where.
    pub arrival: Arrival,
    /// Interrupts that are timed.
    pub wanted: usize,
}

/// What arrives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A soft interrupt in the task.
    Soft,
    /// A hard interrupt in the task.
    Hard,
    /// A hard interrupt in a soft one that has arrived in the task.
    HardInSoft,
}

/// Nanoseconds of a pair of an interrupt that came while no list of its CPU was in use.
const BETWEEN: Metric = Metric { name: "between", unit: "ns", better: Better::Lower };
/// Nanoseconds of a pair of the task with an interrupt in it, without the pairs of the interrupt.
const INTERRUPTED: Metric = Metric { name: "interrupted", unit: "ns", better: Better::Lower };
/// The same where the task makes no pair: what the host takes for a signal.
const SIGNAL: Metric = Metric { name: "signal", unit: "ns", better: Better::Lower };

/// Memory of the machine.
const BYTES: u64 = 256 << 20;
/// From the end of an interrupt to the next. The machine allows 20 us and more.
const PERIOD: Duration = Duration::from_micros(30);
/// How long a soft interrupt makes pairs, so that a hard one arrives in it.
const SOFT_SECONDS: f64 = 30e-6;
/// Pairs of an interrupt that is timed.
const PAIRS: u64 = 8;
/// Turns of the task after which no timer can be at work.
const TURNS: u64 = 2_000_000_000;

/// Every arm. The checksum of a repetition is the number of timed interrupts.
pub fn all() -> Vec<Box<dyn Arm<Inside>>> {
    Guarded::all().map(|arm| Box::new(Quire(arm)) as Box<dyn Arm<Inside>>).into()
}

struct Quire(Guarded);

impl Arm<Inside> for Quire {
    fn name(&self) -> &'static str {
        guards::name_of(self.0.lists)
    }

    fn about(&self) -> &'static str {
        guards::about(self.0.lists)
    }

    fn setup(&mut self, case: &Inside) -> Result<Box<dyn Prepared + '_>, Skip> {
        let lists = self.0.lists;
        let machine = HostedConfig { prefault: false, real_ipis: false, ..HostedConfig::bench(BYTES) };
        with_guard!(lists, P => {
            // SAFETY: H3: `Ready::run` uses the allocator inside `run_on` of this machine, and so do the interrupts on top of that.
            let (machine, allocator) = unsafe { self.0.build::<P>(machine.with_cpus(1)) }?;
            Ok(Box::new(Ready { case: *case, lists, machine, allocator }))
        })
    }
}

struct Ready<'a, P: OnBare> {
    case: Inside,
    lists: ListGuard,
    machine: &'a Hosted,
    allocator: PageAllocator<'a, P>,
}

/// What the task and its interrupts tell each other.
#[derive(Default)]
struct Told {
    /// Timed interrupts so far.
    timed: AtomicU64,
    /// When the pairs of the last one began, by the cycle counter.
    began: AtomicU64,
    /// Counts that they took.
    last: AtomicU64,
    /// A soft interrupt is at work.
    in_soft: AtomicBool,
    /// It came while the task used a list.
    soft_inside: AtomicBool,
    /// Interrupts that were refused a frame, since one below them held a lock of the store.
    refused: AtomicU64,
}

/// The times of interrupts, in counts of [`PAIRS`] pairs. Its room is made before the first arrives.
struct Times {
    inside: Vec<f64>,
    between: Vec<f64>,
}

impl Times {
    fn with_room(wanted: usize) -> Self {
        Self { inside: Vec::with_capacity(wanted), between: Vec::with_capacity(wanted) }
    }

    /// Keeps a time, if there is room for it.
    fn note(&mut self, inside: bool, time: u64) {
        let times = if inside { &mut self.inside } else { &mut self.between };
        if times.len() < times.capacity() {
            times.push(time as f64);
        }
    }

    /// The middle time of a pair.
    fn of_pair(times: &[f64]) -> Option<Span> {
        Summary::of(times).map(|all| Span::of_cycles(all.median / PAIRS as f64))
    }
}

impl<P: OnBare> Prepared for Ready<'_, P> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.machine.run_on(CpuId(0), || match self.case.arrival {
            Arrival::Soft => self.alone(Context::SoftInterrupt),
            Arrival::Hard => self.alone(Context::HardInterrupt),
            Arrival::HardInSoft => self.on_top(),
        })
    }
}

impl<P: OnBare> Ready<'_, P> {
    /// One kind of interrupt in a task that makes pairs, and then in one that makes none.
    fn alone(&self, context: Context) -> Result<Sample, Skip> {
        let (times, interrupted, refused) = self.interrupts_of(context, || self.pairs(1))?;
        let (_, signal, _) = self.interrupts_of(context, || {
            std::hint::spin_loop();
            Some(())
        })?;
        let sample = self.sample(&times, refused)?;
        Ok(sample.metric(INTERRUPTED, interrupted).metric(SIGNAL, signal))
    }

    /// Runs `turn` again and again until enough interrupts have arrived. Returns their times, the nanoseconds of a turn
    /// with one in it, without its pairs, and how many were refused a frame.
    fn interrupts_of(
        &self,
        context: Context,
        turn: impl Fn() -> Option<()>,
    ) -> Result<(Times, f64, u64), Skip> {
        let told = Told::default();
        let mut times = Times::with_room(self.case.wanted);
        let mut turns = Vec::with_capacity(self.case.wanted);
        let handler = || self.timed(&told, &mut times, false);
        let body = || {
            self.until_enough(&told, || {
                let start = cycles::now();
                let done = turn();
                let time = cycles::now().wrapping_sub(start);
                // An interrupt that came before the first reading or after the second is in no turn.
                let after = told.began.load(Ordering::Relaxed).wrapping_sub(start);
                if after < time && turns.len() < turns.capacity() {
                    turns.push(time.saturating_sub(told.last.load(Ordering::Relaxed)) as f64);
                }
                done
            })
        };
        // SAFETY: H6: the handler uses the library, atomics, the counter, and lists that have room.
        let ran = unsafe { self.machine.with_interrupts(PERIOD, context, handler, body) };
        ran.map_err(|error| Skip(error.to_string()))?.result?;
        let turn = Summary::of(&turns).ok_or_else(|| Skip("no turn was interrupted".to_owned()))?;
        Ok((times, cycles::to_nanoseconds(turn.median), told.refused.into_inner()))
    }

    /// Hard interrupts in soft ones.
    fn on_top(&self) -> Result<Sample, Skip> {
        let told = Told::default();
        let mut times = Times::with_room(self.case.wanted);
        let long = (SOFT_SECONDS * cycles::hertz()) as u64;
        let on_soft = || self.soft(&told, long);
        let on_hard = || self.timed(&told, &mut times, true);
        let body = || self.until_enough(&told, || self.pairs(1));
        // SAFETY: H6: the handlers use the library, atomics, the counter, and lists that have room.
        let ran = unsafe {
            self.machine.with_interrupts(PERIOD * 7 / 5, Context::SoftInterrupt, on_soft, || {
                self.machine.with_interrupts(PERIOD, Context::HardInterrupt, on_hard, body)
            })
        };
        let ran = ran.and_then(|ran| ran.result).map_err(|error| Skip(error.to_string()))?;
        ran.result?;
        self.sample(&times, told.refused.into_inner())
    }

    /// The task: turns until enough interrupts were timed.
    fn until_enough(&self, told: &Told, mut turn: impl FnMut() -> Option<()>) -> Result<(), Skip> {
        for _ in 0..TURNS {
            if told.timed.load(Ordering::Relaxed) >= self.case.wanted as u64 {
                return Ok(());
            }
            if turn().is_none() {
                return Err(Skip("a request of the task was refused".to_owned()));
            }
        }
        Err(Skip("the timer stands still".to_owned()))
    }

    /// An interrupt that is timed: where `on_top` is set, only on top of a soft one.
    fn timed(&self, told: &Told, times: &mut Times, on_top: bool) {
        let enough = told.timed.load(Ordering::Relaxed) >= self.case.wanted as u64;
        if enough || on_top && !told.in_soft.load(Ordering::Relaxed) {
            return;
        }
        let nested = self.nested();
        let start = cycles::now();
        let done = self.pairs(PAIRS);
        let time = cycles::now().wrapping_sub(start);
        if done.is_none() {
            told.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let below = !on_top || told.soft_inside.load(Ordering::Relaxed);
        times.note(below && self.nested() > nested, time);
        told.began.store(start, Ordering::Relaxed);
        told.last.store(time, Ordering::Relaxed);
        told.timed.fetch_add(1, Ordering::Relaxed);
    }

    /// A soft interrupt that makes pairs for so many counts.
    fn soft(&self, told: &Told, long: u64) {
        let start = cycles::now();
        let nested = self.nested();
        let mut done = self.pairs(1);
        told.soft_inside.store(self.nested() > nested, Ordering::Relaxed);
        told.in_soft.store(true, Ordering::Relaxed);
        while done.is_some() && cycles::now().wrapping_sub(start) < long {
            done = self.pairs(PAIRS);
        }
        told.in_soft.store(false, Ordering::Relaxed);
        told.refused.fetch_add(u64::from(done.is_none()), Ordering::Relaxed);
    }

    #[inline(always)]
    fn pairs(&self, count: u64) -> Option<()> {
        for _ in 0..count {
            let frame = self.allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME).ok()?;
            self.allocator.free_raw(black_box(frame), Order::FRAME).ok()?;
        }
        Some(())
    }

    /// Uses of lists by interrupts that came while the code below them used one.
    fn nested(&self) -> u64 {
        self.allocator.lists().stat(Stat::PcpNested)
    }

    /// The times of interrupts that came while a list was in use. The other guards never have such: an interrupt waits, or
    /// goes to the store.
    fn sample(&self, times: &Times, refused: u64) -> Result<Sample, Skip> {
        let wanted = self.case.wanted as u64;
        let sample =
            |span: Span| Sample::of(span, 1.0, wanted).count("interrupts", wanted).count("refused", refused);
        let between = Times::of_pair(&times.between);
        if self.lists != ListGuard::Reentry {
            let between = between.ok_or_else(|| Skip("no interrupt arrived".to_owned()))?;
            return Ok(sample(between));
        }
        let both = Times::of_pair(&times.inside).zip(between);
        let (inside, between) =
            both.ok_or_else(|| Skip("no interrupt came inside, or all did".to_owned()))?;
        let inside = sample(inside).count("inside", times.inside.len() as u64);
        Ok(inside.metric(BETWEEN, between.nanoseconds))
    }
}
