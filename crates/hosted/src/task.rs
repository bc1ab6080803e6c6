//! The running thread as a CPU: who it is, and what an interrupt on top of it would find.
//!
//! All of it is one thread-local record without a destructor, so that [`Hosted::pin`](quire::platform::Platform::pin)
//! is one load and one comparison.

use std::cell::Cell;

use quire::cpu::CpuId;
use quire::platform::Context;

use crate::ranks::HeldRanks;

pub(crate) struct Task {
    /// Machine number in the upper half, CPU number in the lower; machine 0 does not exist.
    current: Cell<u64>,
    /// How deep the task is pinned; counted in debug builds only.
    pub(crate) pins: Cell<u32>,
    pub(crate) interrupts_off: Cell<bool>,
    pub(crate) context: Cell<Context>,
    pub(crate) ranks: HeldRanks,
    /// Turns of spin loops, to give the processor away now and then.
    pub(crate) turns: Cell<u32>,
    /// The remote flush that was started last is one that the machine was told to lose.
    pub(crate) flush_lost: Cell<bool>,
}

thread_local! {
    static TASK: Task = const {
        Task {
            current: Cell::new(0),
            pins: Cell::new(0),
            interrupts_off: Cell::new(false),
            context: Cell::new(Context::Task),
            ranks: HeldRanks::none(),
            turns: Cell::new(0),
            flush_lost: Cell::new(false),
        }
    };
}

/// What a task leaves behind while another identity or context runs on its thread.
struct Saved {
    current: u64,
    pins: u32,
    interrupts_off: bool,
    context: Context,
    ranks: u32,
    flush_lost: bool,
}

impl Task {
    /// The record of the running thread.
    #[inline]
    pub(crate) fn with<R>(action: impl FnOnce(&Self) -> R) -> R {
        TASK.with(action)
    }

    /// Which CPU of machine `machine` the thread is, if any.
    #[inline]
    pub(crate) fn cpu_of(&self, machine: u32) -> Option<CpuId> {
        let current = self.current.get();
        ((current >> 32) as u32 == machine).then_some(CpuId(current as u32))
    }

    /// The number of the CPU that the thread is, of whichever machine.
    #[inline(always)]
    pub(crate) fn cpu_of_any(&self) -> CpuId {
        CpuId(self.current.get() as u32)
    }

    fn save(&self) -> Saved {
        Saved {
            current: self.current.get(),
            pins: self.pins.get(),
            interrupts_off: self.interrupts_off.get(),
            context: self.context.get(),
            ranks: self.ranks.replace(0),
            flush_lost: self.flush_lost.get(),
        }
    }

    fn restore(&self, saved: &Saved) {
        self.current.set(saved.current);
        self.pins.set(saved.pins);
        self.interrupts_off.set(saved.interrupts_off);
        self.context.set(saved.context);
        self.ranks.replace(saved.ranks);
        self.flush_lost.set(saved.flush_lost);
    }
}

/// Runs on another identity or context until dropped, panics included.
pub(crate) struct Entered(Saved);

impl Entered {
    /// The thread becomes a CPU of a machine, as a task that holds nothing.
    pub(crate) fn cpu(machine: u32, cpu: CpuId) -> Self {
        Task::with(|task| {
            let saved = task.save();
            task.current.set(u64::from(machine) << 32 | u64::from(cpu.0));
            task.pins.set(0);
            task.interrupts_off.set(false);
            task.context.set(Context::Task);
            Self(saved)
        })
    }

    /// The thread is no CPU.
    pub(crate) fn nobody() -> Self {
        Self::cpu(0, CpuId(0))
    }

    /// An interrupt arrives on the running CPU. It holds no lock of its own yet; that those of the task below are held
    /// still is why interrupts may only try for locks.
    pub(crate) fn interrupt(context: Context) -> Self {
        Task::with(|task| {
            let below = task.context.get();
            assert!(context != Context::Task, "an interrupt cannot run in task context");
            assert!(
                !task.interrupts_off.get() || below == Context::HardInterrupt,
                "interrupts are off on this CPU"
            );
            assert!(
                context == Context::HardInterrupt || below == Context::Task,
                "a soft interrupt cannot arrive on top of {below:?}"
            );
            let saved = task.save();
            task.context.set(context);
            task.interrupts_off.set(context == Context::HardInterrupt);
            Self(saved)
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        Task::with(|task| {
            let held = task.ranks.replace(0);
            let pins = task.pins.get();
            let (changed, expected) = (task.current.get() != self.0.current, self.0.pins);
            task.restore(&self.0);
            if !std::thread::panicking() {
                assert!(held == 0, "locks are still held at the end: {:?}", crate::ranks::names(held));
                let expected = if changed { 0 } else { expected };
                assert!(pins == expected, "pins and unpins do not match: {pins} deep instead of {expected}");
            }
        });
    }
}
