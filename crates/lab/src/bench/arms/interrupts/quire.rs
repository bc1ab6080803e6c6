//! Quire's page allocator, called by tasks and by the interrupts that interrupt them.

use hosted::raw::RawPages;
use std::hint::black_box;

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, PageAllocator};
use quire::platform::Context;

use super::{Interrupts, Pattern, ROUND};
use crate::bench::experiment::{Arm, Prepared, RATE, Sample, Skip};
use crate::bench::ours::guarding::{OnBare, with_guard};
use crate::bench::ours::guards::{self, Guarded};
use crate::host::cycles::Moment;
use crate::host::threads::{Meeting, together};

/// Memory for each thread.
const BYTES: u64 = 256 << 20;

pub(super) struct Quire(pub(super) Guarded);

impl Arm<Interrupts> for Quire {
    fn name(&self) -> &'static str {
        guards::name_of(self.0.lists)
    }

    fn about(&self) -> &'static str {
        guards::about(self.0.lists)
    }

    fn setup(&mut self, case: &Interrupts) -> Result<Box<dyn Prepared + '_>, Skip> {
        let bytes = BYTES * case.threads as u64;
        let machine = HostedConfig { prefault: false, real_ipis: false, ..HostedConfig::bench(bytes) };
        with_guard!(self.0.lists, P => {
            // SAFETY: H3: `Ready::run` uses the allocator inside `run_on` of this machine, and so do the interrupts on top of that.
            let (machine, allocator) = unsafe { self.0.build::<P>(machine.with_cpus(case.threads)) }?;
            Ok(Box::new(Ready { case: case.clone(), machine, allocator }))
        })
    }
}

struct Ready<'a, P: OnBare> {
    case: Interrupts,
    machine: &'a Hosted,
    allocator: PageAllocator<'a, P>,
}

/// The frames that one CPU holds. Aligned to cache lines of its own, since both CPUs write all the time.
#[repr(align(128))]
struct Cpu {
    id: CpuId,
    frames: [Frame; ROUND],
}

/// The work of one thread, with its start and end.
struct PairSpan {
    start: Moment,
    end: Moment,
    pairs: u64,
}

impl<P: OnBare> Prepared for Ready<'_, P> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = &self.case;
        let cpu = |cpu| Cpu { id: CpuId(cpu as u32), frames: [Frame(0); ROUND] };
        let mut cpus: Vec<Cpu> = (0..case.threads).map(cpu).collect();
        let threads = together(&mut cpus, &case.cpus, |cpu, meeting| {
            self.machine.run_on(cpu.id, || self.work(&mut cpu.frames, meeting))
        });
        let expected = (case.rounds * ROUND) as u64;
        if let Some(short) = threads.iter().find(|thread| thread.pairs < expected) {
            return Err(Skip(format!("{} of {expected} requests were served", short.pairs)));
        }
        let Some(first) = threads.first() else { return Err(Skip("no thread did anything".to_owned())) };
        let start = threads.iter().fold(first.start, |moment, thread| moment.earlier(thread.start));
        let end = threads.iter().fold(first.end, |moment, thread| moment.later(thread.end));
        let pairs = expected * case.threads as u64;
        let (span, busy) = (start.until(end), case.threads.min(case.cpus.len()) as f64);
        Ok(Sample::of(span * busy, pairs as f64, pairs)
            .metric(RATE, pairs as f64 * 1e9 / span.nanoseconds)
            .count("interrupts", (case.rounds * case.threads) as u64)
            .count("pairs_by_interrupts", (case.rounds * case.by_interrupt * case.threads) as u64))
    }
}

impl<P: OnBare> Ready<'_, P> {
    fn work(&self, frames: &mut [Frame; ROUND], meeting: &Meeting) -> PairSpan {
        let (by_interrupt, by_task) = frames.split_at_mut(self.case.by_interrupt);
        meeting.wait();
        let start = Moment::now();
        let mut pairs = 0;
        for _ in 0..self.case.rounds {
            pairs += match self.case.pattern {
                Pattern::Receive => {
                    let taken = self.interrupt(|| self.take(by_interrupt));
                    let rest = self.take(by_task);
                    self.give(black_box(&by_interrupt[..taken])) + self.give(black_box(&by_task[..rest]))
                }
                Pattern::Pairs => {
                    self.interrupt(|| self.pairs(by_interrupt.len())) + self.pairs(by_task.len())
                }
            };
        }
        PairSpan { start, end: Moment::now(), pairs }
    }

    fn interrupt<R>(&self, work: impl FnOnce() -> R) -> R {
        self.machine.interrupt(Context::SoftInterrupt, work)
    }

    /// Fills `frames` by one call for each; returns their number.
    #[inline(always)]
    fn take(&self, frames: &mut [Frame]) -> usize {
        for (taken, slot) in frames.iter_mut().enumerate() {
            match self.allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME) {
                Ok(frame) => *slot = frame,
                Err(_) => return taken,
            }
        }
        frames.len()
    }

    /// Frees `frames` by one call for each; returns how many were accepted.
    #[inline(always)]
    fn give(&self, frames: &[Frame]) -> u64 {
        frames.iter().map(|&frame| u64::from(self.allocator.free_raw(frame, Order::FRAME).is_ok())).sum()
    }

    #[inline(always)]
    fn pairs(&self, count: usize) -> u64 {
        let pair = |_| {
            let frame = self.allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME).ok()?;
            self.allocator.free_raw(black_box(frame), Order::FRAME).ok()
        };
        (0..count).map_while(pair).count() as u64
    }
}
