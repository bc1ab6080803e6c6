//! The running thread as a CPU: which one it is, and what an interrupt on top of it would find.
//!
//! All of it is one thread-local record without a destructor, so that [`Hosted::pin`](quire::platform::FramePlatform::pin)
//! is one comparison and one load. Interrupts run on the same thread, between any two of its instructions, and put back
//! what they change; the fields are atomics for that reason alone, and cost what plain ones do.

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

use quire::cpu::CpuId;
use quire::platform::Context;

use super::source::Source;
use crate::ranks::HeldRanks;

/// Set in [`Task::machine`] while the platform's calls are counted, so that the comparison in `pin` fails.
pub(super) const COUNTED: usize = 1;

/// The identity of no machine.
pub(super) const NO_MACHINE: usize = 0;

pub(crate) struct Task {
    /// The address of the machine that the thread is a CPU of, which borrows it meanwhile, and [`COUNTED`].
    pub(super) machine: AtomicUsize,
    pub(super) cpu: AtomicU32,
    /// How deep the task is pinned; counted in debug builds only.
    pub(super) pins: AtomicU32,
    pub(super) interrupts_off: AtomicBool,
    /// An interrupt waits to be delivered, or the platform's calls are counted.
    attention: AtomicBool,
    /// The remote flush that was started last is one that the machine was told to lose.
    pub(super) flush_lost: AtomicBool,
    pub(super) context: AtomicU8,
    /// The thread is another CPU for a while, or another machine's, in the middle of what it did before.
    pub(super) aside: AtomicBool,
    /// How deep the machine is in work that is one step to its interrupts.
    pub(super) held: AtomicU32,
    /// Stepping was left off for that work, and goes on at its end.
    pub(super) steps_left_off: AtomicBool,
    pub(crate) ranks: HeldRanks,
    /// Turns of spin loops, to give the processor away now and then.
    turns: AtomicU32,
    /// The processor's flags as [`FramePlatform::interrupts_off`](quire::platform::FramePlatform::interrupts_off) found them, where
    /// that has its real price.
    pub(crate) flags: AtomicU64,
    /// What interrupts this thread, the newest first; each lives until it takes itself off.
    pub(crate) sources: AtomicPtr<Source>,
}

thread_local! {
    static TASK: Task = const {
        Task {
            machine: AtomicUsize::new(NO_MACHINE),
            cpu: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            interrupts_off: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            flush_lost: AtomicBool::new(false),
            context: AtomicU8::new(0),
            aside: AtomicBool::new(false),
            held: AtomicU32::new(0),
            steps_left_off: AtomicBool::new(false),
            ranks: HeldRanks::none(),
            turns: AtomicU32::new(0),
            flags: AtomicU64::new(0),
            sources: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

impl Task {
    /// The record of the running thread.
    #[inline(always)]
    pub(crate) fn with<R>(action: impl FnOnce(&Self) -> R) -> R {
        TASK.with(action)
    }

    /// Whether the thread is a CPU of the machine at `machine`, and nothing else is to be done about a call.
    #[inline(always)]
    pub(crate) fn runs_undisturbed(&self, machine: usize) -> bool {
        self.machine.load(Ordering::Relaxed) == machine
    }

    /// The CPU that the thread is of whatever machine.
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

    /// From now on the platform's calls are counted, or not; says how it was.
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
        self.pins.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn pinned(&self) {
        self.pins.store(self.pins() + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn unpinned(&self) {
        let pins = self.pins().checked_sub(1);
        self.pins.store(pins.expect("unpin without pin"), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn interrupts_off(&self) -> bool {
        self.interrupts_off.load(Ordering::Relaxed)
    }

    /// Turns interrupts off or on, before anything that follows and after all that went before. The caller looks at
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

    /// Notes whether the flush that was started last is lost, and says whether the one before was.
    pub(crate) fn replace_flush_lost(&self, lost: bool) -> bool {
        let was = self.flush_lost.load(Ordering::Relaxed);
        self.flush_lost.store(lost, Ordering::Relaxed);
        was
    }

    /// Whether interrupts wait for the machine itself, see [`hold`](super::entered::hold).
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
    }
}
