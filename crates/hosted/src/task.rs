//! The running thread as a CPU: who it is, and what an interrupt on top of it would find.
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

use crate::interrupts::{Source, Watch};
use crate::ranks::HeldRanks;

/// Set in [`Task::machine`] while the platform's calls are counted, so that the comparison in `pin` fails.
const COUNTED: usize = 1;

/// The identity of no machine.
const NOBODY: usize = 0;

pub(crate) struct Task {
    /// The address of the machine that the thread is a CPU of, which borrows it meanwhile, and [`COUNTED`].
    machine: AtomicUsize,
    cpu: AtomicU32,
    /// How deep the task is pinned; counted in debug builds only.
    pins: AtomicU32,
    interrupts_off: AtomicBool,
    /// An interrupt waits to be delivered, or the platform's calls are counted.
    attention: AtomicBool,
    /// The remote flush that was started last is one that the machine was told to lose.
    flush_lost: AtomicBool,
    context: AtomicU8,
    /// The thread is another CPU for a while, or another machine's, in the middle of what it did before.
    aside: AtomicBool,
    /// How deep the machine is in work that is one step to its interrupts.
    held: AtomicU32,
    pub(crate) ranks: HeldRanks,
    /// Turns of spin loops, to give the processor away now and then.
    turns: AtomicU32,
    /// The processor's flags as [`FramePlatform::interrupts_off`](quire::platform::FramePlatform::interrupts_off) found them, where
    /// that has its real price.
    pub(crate) flags: AtomicU64,
    /// What interrupts this thread, the newest first; each lives until it takes itself off.
    pub(crate) sources: AtomicPtr<Source>,
    /// Who looks at each instruction of this thread; it lives until it takes itself off.
    pub(crate) watch: AtomicPtr<Watch>,
}

thread_local! {
    static TASK: Task = const {
        Task {
            machine: AtomicUsize::new(NOBODY),
            cpu: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            interrupts_off: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            flush_lost: AtomicBool::new(false),
            context: AtomicU8::new(0),
            aside: AtomicBool::new(false),
            held: AtomicU32::new(0),
            ranks: HeldRanks::none(),
            turns: AtomicU32::new(0),
            flags: AtomicU64::new(0),
            sources: AtomicPtr::new(ptr::null_mut()),
            watch: AtomicPtr::new(ptr::null_mut()),
        }
    };
}

/// What a task leaves behind while another identity or context runs on its thread.
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

    /// Whether the running code can be in the middle of no verb: it holds nothing, interrupts nothing, and does not run on top
    /// of something on this thread that does.
    pub(crate) fn is_between_verbs(&self) -> bool {
        let busy = !self.ranks.is_none() || self.pins() > 0 || self.context() != Context::Task;
        !busy && !self.aside.load(Ordering::Relaxed) && !crate::interrupts::is_in_handler(self)
    }

    /// Whether interrupts wait for the machine itself, see [`hold`].
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
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

    /// The identity goes first and comes last: an interrupt that arrives in between finds no CPU of its own and waits.
    fn become_other(&self, other: &Saved) {
        self.machine.store(NOBODY, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.cpu.store(other.cpu, Ordering::Relaxed);
        self.pins.store(other.pins, Ordering::Relaxed);
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

/// Makes what the machine does until the guard is dropped one step to its interrupts, as a processor's own work is: they
/// wait, and find none of the machine's own locks held.
pub(crate) fn hold() -> Held {
    Task::with(|task| task.held.store(task.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
    Held(())
}

/// See [`hold`].
pub(crate) struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        Task::with(|task| {
            task.held.store(task.held.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            crate::interrupts::deliver_waiting(task);
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
    pub(crate) fn nobody() -> Self {
        Self::cpu(NOBODY, CpuId(0))
    }

    /// An interrupt arrives on the running CPU. It holds no lock of its own yet; that those of the task below are held
    /// still is why interrupts may only try for locks.
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
                crate::interrupts::deliver_waiting(task);
                assert!(held == 0, "locks are still held at the end: {:?}", crate::ranks::names(held));
                let expected = if changed { 0 } else { expected };
                assert!(pins == expected, "pins and unpins do not match: {pins} deep instead of {expected}");
            }
        });
    }
}
