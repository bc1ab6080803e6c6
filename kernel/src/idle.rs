//! What a CPU does when no task wants it: it clears memory ahead of its use, and then sleeps.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use x86_64::instructions::interrupts;

use crate::cpu::area;
use crate::memory::manager::manager;
use crate::task::process::Process;
use crate::task::wait::WaitQueue;
use crate::task::{Task, sched};

/// CPUs that found nothing to clear when they last looked, one bit each.
static DONE: AtomicU64 = AtomicU64::new(0);
/// CPUs that clear memory, whose frames count as in use meanwhile.
static CLEARING: AtomicUsize = AtomicUsize::new(0);
static PAUSED: AtomicBool = AtomicBool::new(false);
static STOPPED: WaitQueue = WaitQueue::new();

/// Makes the running code the idle task of its CPU.
pub fn become_idle() {
    sched::become_idle_task(Task::idle(Process::kernel()));
}

/// Runs on a CPU without tasks, for ever.
pub fn run() -> ! {
    sched::idle_loop(wait)
}

/// Clears some memory; or sleeps until the next interrupt, if there was none to clear the last time. Interrupts are
/// off before, so that none is missed, and on afterwards.
fn wait() {
    let cpu = 1 << area::cpu_id().0;
    if DONE.fetch_and(!cpu, Ordering::Relaxed) & cpu != 0 {
        return interrupts::enable_and_hlt();
    }
    interrupts::enable();
    // A clear that ended because a task came has left memory to clear, as soon as the CPU is idle again.
    if !clear_ahead() && !area::this().need_resched() {
        DONE.fetch_or(cpu, Ordering::Relaxed);
    }
}

/// Clears a piece of memory that a task may touch later. Returns whether there was one.
fn clear_ahead() -> bool {
    CLEARING.fetch_add(1, Ordering::SeqCst);
    let cleared = !PAUSED.load(Ordering::SeqCst) && (manager().clear_ahead() || manager().zero_ahead());
    CLEARING.fetch_sub(1, Ordering::SeqCst);
    if PAUSED.load(Ordering::SeqCst) {
        STOPPED.wake_all();
    }
    cleared
}

/// Runs while no CPU clears memory ahead, so that all frames in use are counted where they belong. Sleeps
/// until then: it may be this CPU's idle task that clears, and has let the caller run.
pub fn paused<R>(run: impl FnOnce() -> R) -> R {
    PAUSED.store(true, Ordering::SeqCst);
    STOPPED.wait_uninterruptible(|| (CLEARING.load(Ordering::SeqCst) == 0).then_some(()));
    let result = run();
    PAUSED.store(false, Ordering::SeqCst);
    result
}
