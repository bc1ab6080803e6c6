//! Which tasks wait for a CPU: a queue for each CPU, first in first out. A CPU without work steals from others.
//!
//! Tasks in a queue are linked by a field of their own, because handlers wake tasks and must not run out of memory.

use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use quire::cpu::CpuId;

use super::thread::Task;
use crate::cpu::area::{self, MAX_CPUS};
use crate::cpu::ipi;
use crate::sync::IrqLock;

/// The tasks that wait for one CPU.
struct Queue {
    first: Option<Arc<Task>>,
    last: *const Task,
    length: usize,
}

// SAFETY: X4: `last` points to a task of the queue, which can go to any CPU.
unsafe impl Send for Queue {}

static QUEUES: [IrqLock<Queue>; MAX_CPUS] =
    [const { IrqLock::new(Queue { first: None, last: ptr::null(), length: 0 }) }; MAX_CPUS];
/// How many tasks are in all queues.
static WAITING: AtomicUsize = AtomicUsize::new(0);

impl Queue {
    fn push_back(&mut self, task: Arc<Task>) {
        let new = Arc::as_ptr(&task);
        let place = match self.first {
            None => &mut self.first,
            // SAFETY: X4: the queue holds a reference to its last task, and is the only user of the link of a
            // task in it.
            Some(_) => unsafe { &mut *(*self.last).next_in_queue.get() },
        };
        *place = Some(task);
        self.last = new;
        self.length += 1;
        WAITING.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the first task that `current`'s CPU can run, of those that `may` allows: the others are still on the CPU that
    /// they slept on.
    fn take(&mut self, current: *const Task, may: impl Fn(&Task) -> bool) -> Option<Arc<Task>> {
        let mut place = &mut self.first;
        let mut before = ptr::null();
        loop {
            let task = place.as_ref()?;
            let is_current = Arc::as_ptr(task) == current;
            if is_current || may(task) && !task.on_cpu.swap(true, Ordering::Acquire) {
                break;
            }
            before = Arc::as_ptr(task);
            // SAFETY: X4: the task is in this queue, which is the only user of its link.
            place = unsafe { &mut *task.next_in_queue.get() };
        }
        let task = place.take()?;
        // SAFETY: X4: the task is in this queue, which is the only user of its link.
        *place = unsafe { (*task.next_in_queue.get()).take() };
        if self.last == Arc::as_ptr(&task) {
            self.last = before;
        }
        self.length -= 1;
        WAITING.fetch_sub(1, Ordering::SeqCst);
        Some(task)
    }

    /// Whether one of its tasks may run on a CPU.
    fn has_for(&self, cpu: CpuId) -> bool {
        let mut place = &self.first;
        while let Some(task) = place {
            if task.allowed.contains(cpu) {
                return true;
            }
            // SAFETY: X4: the task is in this queue, which is the only user of its link.
            place = unsafe { &*task.next_in_queue.get() };
        }
        false
    }
}

/// Puts a task that can run at the end of the queue of an idle CPU, or else of the CPU on which it ran last. If its
/// program may not run there, of the first one on which it may. Returns the CPU.
pub fn push(task: Arc<Task>) -> CpuId {
    let cpu = cpu_for(&task);
    push_back(cpu, task);
    cpu
}

fn cpu_for(task: &Task) -> CpuId {
    let last = CpuId(task.queued_on.load(Ordering::Relaxed));
    let (may, is_idle) = (|cpu: &CpuId| task.allowed.contains(*cpu), |cpu: &CpuId| area::of(*cpu).is_idle());
    if may(&last) && is_idle(&last) {
        return last;
    }
    let allowed = || (0..area::count() as u32).map(CpuId).filter(may);
    let other = || if may(&last) { Some(last) } else { allowed().next() };
    allowed().find(is_idle).or_else(other).unwrap_or(last)
}

/// Puts a task at the end of a CPU's queue.
pub fn push_back(cpu: CpuId, task: Arc<Task>) {
    task.queued_on.store(cpu.0, Ordering::Relaxed);
    QUEUES[cpu.index()].lock().push_back(task);
}

/// Takes the next task for a CPU, on which `current` runs, and marks it as on a CPU: from the CPU's own queue, or else from
/// the longest other one.
pub fn pop(cpu: CpuId, current: *const Task) -> Option<Arc<Task>> {
    while waiting() > 0 {
        let own = QUEUES[cpu.index()].lock().take(current, |_| true);
        let Some(task) = own else { return steal(cpu, current) };
        if Arc::as_ptr(&task) == current || task.allowed.contains(cpu) {
            return Some(task);
        }
        // It may run here no more since it came into the queue.
        task.on_cpu.store(false, Ordering::Release);
        ipi::reschedule(push(task));
    }
    None
}

/// Whether a task waits for this CPU.
pub fn has_work(cpu: CpuId) -> bool {
    waiting() > 0 && QUEUES[cpu.index()].lock().length > 0
}

/// Whether a task waits that this CPU can run, or must pass on.
pub fn has_work_for(cpu: CpuId) -> bool {
    let can_steal = || (0..area::count()).any(|other| QUEUES[other].lock().has_for(cpu));
    waiting() > 0 && (has_work(cpu) || can_steal())
}

/// How many tasks wait for a CPU.
pub fn waiting() -> usize {
    WAITING.load(Ordering::SeqCst)
}

fn steal(thief: CpuId, current: *const Task) -> Option<Arc<Task>> {
    let others = (0..area::count()).filter(|&cpu| cpu != thief.index() && QUEUES[cpu].lock().has_for(thief));
    let longest = others.max_by_key(|&cpu| QUEUES[cpu].lock().length)?;
    let task = QUEUES[longest].lock().take(current, |task| task.allowed.contains(thief))?;
    task.queued_on.store(thief.0, Ordering::Relaxed);
    Some(task)
}
