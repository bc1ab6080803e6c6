//! The primitives as Quire uses them on a hosted machine.

use hosted::raw::RawPages;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{Hosted, HostedConfig};
use quire::addr::Order;
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, ListGuard, PageAllocator};
use quire::platform::Context;
use quire::rank::Rank;
use quire::sync::{Pinned, SpinLock};

use super::{Primitive, What};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours::guarding::{OnBare, with_guard};
use crate::bench::ours::guards::{self, Guarded};
use crate::host::cycles::Moment;

/// Memory of the machine: enough for a pair.
const BYTES: u64 = 64 << 20;

pub(super) struct Quire(pub(super) Guarded);

impl Arm<Primitive> for Quire {
    fn name(&self) -> &'static str {
        guards::name_of(self.0.lists)
    }

    fn about(&self) -> &'static str {
        guards::about(self.0.lists)
    }

    fn setup(&mut self, case: &Primitive) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.0.lists != ListGuard::Reentry && case.what != What::PagePair {
            return Err(Skip("this primitive is the same for every arm: see `quire`".to_owned()));
        }
        let bench = HostedConfig::bench(BYTES);
        let interrupt_price = bench.interrupt_price && case.what.saves_flags();
        let machine = HostedConfig { real_ipis: false, interrupt_price, ..bench };
        with_guard!(self.0.lists, P => {
            // SAFETY: H3: `Ready::run` uses the allocator inside `run_on` of this machine.
            let (machine, allocator) = unsafe { self.0.build::<P>(machine) }?;
            Ok(Box::new(Ready { case: *case, machine, allocator }))
        })
    }
}

struct Ready<'a, P: OnBare> {
    case: Primitive,
    machine: &'a Hosted,
    allocator: PageAllocator<'a, P>,
}

impl<P: OnBare> Prepared for Ready<'_, P> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.machine.run_on(CpuId(0), || self.once())
    }
}

impl<P: OnBare> Ready<'_, P> {
    fn once(&self) -> Result<Sample, Skip> {
        let machine = self.allocator.platform();
        let lock = SpinLock::new(Rank::Shard, 0_u64);
        let cell = AtomicU64::new(0);
        let pointer = black_box(callee as fn(u64) -> u64);
        match self.case.what {
            What::Loop => self.timed(|_| ()),
            What::SpinLock => self.timed(|_| *lock.lock(machine) += 1),
            What::SpinLockInterruptsOff | What::SpinLockFlagsUnsaved => self.timed(|_| {
                let before = machine.interrupts_off();
                *lock.lock(machine) += 1;
                machine.interrupts_restore(before);
            }),
            What::InterruptsOff | What::InterruptsFlagsUnsaved => self.timed(|_| {
                let before = machine.interrupts_off();
                machine.interrupts_restore(black_box(before));
            }),
            What::Pin => self.timed(|_| {
                black_box(Pinned::new(machine).cpu());
            }),
            What::Call => self.timed(|turn| {
                black_box(callee(turn));
            }),
            What::IndirectCall => self.timed(|turn| {
                black_box(pointer(turn));
            }),
            What::LockedAdd => self.timed(|_| {
                cell.fetch_add(1, Ordering::Relaxed);
            }),
            What::Interrupt => self.timed(|turn| {
                self.machine.interrupt(Context::SoftInterrupt, || black_box(turn));
            }),
            What::SoftInterruptsOff => Err(Skip(
                "Quire never keeps soft interrupts out: where one finds a list in use, it takes another"
                    .to_owned(),
            )),
            What::PagePair => {
                let mut refused = 0_u64;
                let sample = self.timed(|_| match self.allocator.alloc_raw(Gfp::KERNEL, Order::FRAME) {
                    Ok(frame) => refused += u64::from(self.allocator.free_raw(frame, Order::FRAME).is_err()),
                    Err(_) => refused += 1,
                });
                if refused > 0 { Err(Skip(format!("{refused} requests were refused"))) } else { sample }
            }
        }
    }

    /// Runs `work` as often as the case says; `work` gets the turn's number.
    #[inline(always)]
    fn timed(&self, mut work: impl FnMut(u64)) -> Result<Sample, Skip> {
        let count = self.case.count as u64;
        let start = Moment::now();
        for turn in 0..count {
            work(black_box(turn));
        }
        let span = start.until(Moment::now());
        Ok(Sample::of(span, count as f64, count).count("turns", count))
    }
}

#[inline(never)]
fn callee(turn: u64) -> u64 {
    turn ^ 1
}
