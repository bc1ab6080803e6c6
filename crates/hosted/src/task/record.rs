//! The running thread as a CPU: its number, and the state that an interrupt would find.
//!
//! All of it is one thread-local record without a destructor, so that
//! [`Hosted::pin`](quire::platform::FramePlatform::pin) is one comparison and one load. Interrupts run on the
//! same thread, between any two of its instructions, and restore the fields that they change; the fields are
//! atomics only for that reason, and cost as much as plain ones.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use quire::cpu::CpuId;
use quire::platform::Context;
use quire::rank::Rank;

use super::by_register::by_register;
use super::source::Source;
use crate::ranks::HeldRanks;

/// Set in [`Task::machine`] while the platform's calls are counted, so that the comparison in `pin` fails.
pub(super) const COUNTED: usize = 1;

/// The identity of no machine.
pub(super) const NO_MACHINE: usize = 0;

/// Set in [`Task::pins`] unless the task is asked to give its CPU up, as in the preemption count of Linux: so
/// the last unpin finds out with the flags of its subtraction. Nothing asks here.
const STAYS: u32 = 1 << 31;

pub(crate) struct Task {
    /// The address of the machine that the thread is a CPU of, which borrows it meanwhile, and [`COUNTED`].
    pub(super) machine: AtomicUsize,
    pub(super) cpu: AtomicU32,
    /// How deep the task is pinned, and [`STAYS`]. [`Hosted`](crate::Hosted) counts in debug builds only.
    pins: AtomicU32,
    pub(super) interrupts_off: AtomicBool,
    /// An interrupt waits to be delivered, or the platform's calls are counted.
    attention: AtomicBool,
    /// Whether the machine must lose the remote flush that was started last.
    pub(super) flush_lost: AtomicBool,
    pub(super) context: AtomicU8,
    /// Whether the thread is another CPU for a while, or one of another machine, in the middle of its own
    /// work.
    pub(super) aside: AtomicBool,
    /// Nesting depth of the machine's own work, which is one step to its interrupts.
    pub(super) held: AtomicU32,
    /// Whether stepping was suspended for that work, and resumes at its end.
    pub(super) steps_left_off: AtomicBool,
    pub(crate) ranks: HeldRanks,
    /// Turns of spin loops, to yield the processor now and then.
    turns: AtomicU32,
    /// The sources that interrupt this thread, the newest first; each lives until it removes itself.
    pub(crate) sources: AtomicPtr<Source>,
}

thread_local! {
    static TASK: Task = const {
        Task {
            machine: AtomicUsize::new(NO_MACHINE),
            cpu: AtomicU32::new(0),
            pins: AtomicU32::new(STAYS),
            interrupts_off: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            flush_lost: AtomicBool::new(false),
            context: AtomicU8::new(0),
            aside: AtomicBool::new(false),
            held: AtomicU32::new(0),
            steps_left_off: AtomicBool::new(false),
            ranks: HeldRanks::none(),
            turns: AtomicU32::new(0),
            sources: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

impl Task {
    /// The record of the running thread.
    #[inline(always)]
    pub(crate) fn with<R>(action: impl FnOnce(&Self) -> R) -> R {
        TASK.with(|task| action(by_register(task)))
    }

    /// Whether the thread is a CPU of the machine at `machine`, and a call needs no further work.
    #[inline(always)]
    pub(crate) fn runs_undisturbed(&self, machine: usize) -> bool {
        self.machine.load(Ordering::Relaxed) == machine
    }

    /// The thread's CPU, of whichever machine.
    #[inline(always)]
    pub(crate) fn cpu(&self) -> CpuId {
        CpuId(self.cpu.load(Ordering::Relaxed))
    }

    /// Which CPU of the machine at `machine` the thread is, if any.
    #[inline]
    pub(crate) fn cpu_of(&self, machine: usize) -> Option<CpuId> {
        (self.machine() == machine).then(|| self.cpu())
    }

    /// The address of the machine that the thread is a CPU of.
    #[inline]
    pub(crate) fn machine(&self) -> usize {
        self.machine.load(Ordering::Relaxed) & !COUNTED
    }

    /// Counts the platform's calls from now on, or not; returns the old setting.
    pub(crate) fn count_calls(&self, on: bool) -> bool {
        let was = self.machine.load(Ordering::Relaxed);
        self.machine.store(was & !COUNTED | usize::from(on), Ordering::Relaxed);
        was & COUNTED != 0
    }

    #[inline]
    pub(crate) fn context(&self) -> Context {
        match self.context.load(Ordering::Relaxed) {
            0 => Context::Task,
            1 => Context::SoftInterrupt,
            _ => Context::HardInterrupt,
        }
    }

    pub(crate) fn pins(&self) -> u32 {
        self.pins.load(Ordering::Relaxed) & !STAYS
    }

    pub(super) fn set_pins(&self, pins: u32) {
        self.pins.store(pins | STAYS, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn pinned(&self) {
        self.pins.store(self.pins.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn unpinned(&self) {
        debug_assert!(self.pins() > 0, "unpin without pin");
        let left = self.pins.load(Ordering::Relaxed).wrapping_sub(1);
        self.pins.store(left, Ordering::Relaxed);
        if left == 0 {
            give_up_cpu();
        }
    }

    #[inline]
    pub(crate) fn interrupts_off(&self) -> bool {
        self.interrupts_off.load(Ordering::Relaxed)
    }

    /// Turns interrupts off or on, ordered after all earlier code and before all later. The caller checks
    /// [`Self::wants_attention`] after turning them on.
    #[inline]
    pub(crate) fn set_interrupts_off(&self, off: bool) {
        compiler_fence(Ordering::SeqCst);
        self.interrupts_off.store(off, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed)
    }

    pub(crate) fn set_attention(&self, on: bool) {
        self.attention.store(on, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// The next turn of a spin loop; counts from 1.
    pub(crate) fn next_turn(&self) -> u32 {
        let turns = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turns, Ordering::Relaxed);
        turns
    }

    /// Records whether the flush that was started last is lost; returns the same of the one before.
    pub(crate) fn replace_flush_lost(&self, lost: bool) -> bool {
        let was = self.flush_lost.load(Ordering::Relaxed);
        self.flush_lost.store(lost, Ordering::Relaxed);
        was
    }

    /// The whole contract of `FramePlatform::might_sleep`. Only debug builds know of pins.
    pub(crate) fn check_may_sleep(&self) {
        let context = self.context();
        assert!(
            context == Context::Task,
            "a call that may sleep or flush other CPUs was made in a {context:?}: only a task may make it"
        );
        assert!(
            !self.interrupts_off(),
            "a call that may sleep or flush other CPUs was made with interrupts off"
        );
        assert_eq!(self.pins(), 0, "a pinned task made a call that may sleep or flush other CPUs");
        assert!(
            self.ranks.is_none(),
            "a task that holds a lock made a call that may sleep or flush other CPUs"
        );
    }

    /// Debug builds refuse to ask for an address space's lock, and so perhaps to wait, where no task may sleep.
    #[inline]
    pub(crate) fn check_lock(&self, rank: Rank) {
        if cfg!(debug_assertions) && rank == Rank::AddressSpace {
            assert_eq!(self.pins(), 0, "a pinned task asked for an address space's lock");
            assert_eq!(self.context(), Context::Task, "only a task may ask for an address space's lock");
            assert!(!self.interrupts_off(), "an address space's lock was asked for with interrupts off");
        }
    }

    /// Debug builds refuse to give an address space's lock back, and so perhaps to wake others, under another.
    #[inline]
    pub(crate) fn check_unlock(&self, rank: Rank) {
        let may_wake = rank != Rank::AddressSpace || self.ranks.is_none();
        debug_assert!(may_wake, "a task that holds a lock gave an address space's back");
    }

    /// Whether interrupts wait for the machine itself, see [`hold`](super::entered::hold).
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
    }
}

#[cold]
#[inline(never)]
fn give_up_cpu() {
    std::thread::yield_now();
}
