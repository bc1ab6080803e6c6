//! Another identity or context for a while: a thread becomes a CPU, steps aside, is interrupted, or does the machine's
//! own work.

use std::sync::atomic::{Ordering, compiler_fence};

use quire::cpu::CpuId;
use quire::platform::Context;

use super::record::{COUNTED, NO_MACHINE, Task};
use super::source::{deliver_waiting, is_in_handler};
use crate::flags::set_trap_flag;

/// The state of a task that another identity or context replaces on its thread.
struct Saved {
    machine: usize,
    cpu: u32,
    pins: u32,
    interrupts_off: bool,
    context: u8,
    ranks: u32,
    flush_lost: bool,
    aside: bool,
}

impl Task {
    /// Whether the running code is between verbs: it holds nothing, interrupts nothing, and runs on top of
    /// nothing on this thread that does.
    pub(crate) fn is_between_verbs(&self) -> bool {
        let busy = !self.ranks.is_none() || self.pins() > 0 || self.context() != Context::Task;
        !busy && !self.aside.load(Ordering::Relaxed) && !is_in_handler(self)
    }

    fn save(&self) -> Saved {
        Saved {
            machine: self.machine.load(Ordering::Relaxed),
            cpu: self.cpu.load(Ordering::Relaxed),
            pins: self.pins(),
            interrupts_off: self.interrupts_off(),
            context: self.context.load(Ordering::Relaxed),
            ranks: self.ranks.replace(0),
            flush_lost: self.flush_lost.load(Ordering::Relaxed),
            aside: self.aside.load(Ordering::Relaxed),
        }
    }

    /// The identity is removed first and restored last: an interrupt in between finds no CPU and waits.
    fn become_other(&self, other: &Saved) {
        self.machine.store(NO_MACHINE, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.cpu.store(other.cpu, Ordering::Relaxed);
        self.set_pins(other.pins);
        self.ranks.replace(other.ranks);
        self.flush_lost.store(other.flush_lost, Ordering::Relaxed);
        self.aside.store(other.aside, Ordering::Relaxed);
        self.context.store(other.context, Ordering::Relaxed);
        self.interrupts_off.store(other.interrupts_off, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.machine.store(other.machine, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Makes the machine's work until the guard is dropped one step to its interrupts, as a processor's own work
/// is: they wait, and never find the machine's own locks held.
pub(crate) fn hold() -> Held {
    Task::with(|task| task.held.store(task.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
    Held(())
}

/// Resumes stepping, if the first step of the machine's own work ended it.
#[inline]
fn go_on_stepping(task: &Task) {
    if task.steps_left_off.load(Ordering::Relaxed) && !task.is_held() {
        task.steps_left_off.store(false, Ordering::Relaxed);
        set_trap_flag();
    }
}

/// See [`hold`].
pub(crate) struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        Task::with(|task| {
            task.held.store(task.held.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            go_on_stepping(task);
            deliver_waiting(task);
        });
    }
}

/// Runs on another identity or context until dropped, panics included.
pub(crate) struct Entered(Saved);

impl Entered {
    /// The thread becomes a CPU of a machine, as a task that holds nothing.
    pub(crate) fn cpu(machine: usize, cpu: CpuId) -> Self {
        Task::with(|task| {
            let aside = !task.is_between_verbs();
            let saved = task.save();
            task.become_other(&Saved {
                machine,
                cpu: cpu.0,
                pins: 0,
                interrupts_off: false,
                context: Context::Task as u8,
                ranks: 0,
                flush_lost: false,
                aside,
            });
            Self(saved)
        })
    }

    /// The thread is no CPU.
    pub(crate) fn no_cpu() -> Self {
        Self::cpu(NO_MACHINE, CpuId(0))
    }

    /// An interrupt arrives on the running CPU. It holds no lock of its own yet. The task below still holds
    /// its locks, so an interrupt may only try for locks.
    pub(crate) fn interrupt(context: Context) -> Self {
        Task::with(|task| {
            let below = task.context();
            assert!(context != Context::Task, "an interrupt cannot run in task context");
            assert!(
                !task.interrupts_off() || below == Context::HardInterrupt,
                "interrupts are off on this CPU"
            );
            assert!(
                context == Context::HardInterrupt || below == Context::Task,
                "a soft interrupt cannot arrive on top of {below:?}"
            );
            let saved = task.save();
            task.count_calls(false);
            task.context.store(context as u8, Ordering::Relaxed);
            task.set_interrupts_off(context == Context::HardInterrupt);
            Self(saved)
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        Task::with(|task| {
            let held = task.ranks.replace(0);
            let pins = task.pins();
            let changed = task.machine() != self.0.machine & !COUNTED || task.cpu().0 != self.0.cpu;
            let expected = self.0.pins;
            task.become_other(&self.0);
            if !std::thread::panicking() {
                deliver_waiting(task);
                assert!(held == 0, "locks are still held at the end: {:?}", crate::ranks::names(held));
                let expected = if changed { 0 } else { expected };
                assert!(pins == expected, "pins and unpins do not match: {pins} deep instead of {expected}");
            }
        });
    }
}
