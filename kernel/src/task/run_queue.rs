//! Which tasks wait for a CPU: a queue for each CPU, first in first out. A CPU without work steals from others.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use quire::cpu::CpuId;

use super::thread::Task;
use crate::cpu::area::{self, MAX_CPUS};
use crate::sync::IrqLock;

static QUEUES: [IrqLock<VecDeque<Arc<Task>>>; MAX_CPUS] = [const { IrqLock::new(VecDeque::new()) }; MAX_CPUS];

/// Puts a task that can run at the end of the queue of an idle CPU, or else of the CPU on which it ran last.
/// Returns the CPU.
pub fn push(task: Arc<Task>) -> CpuId {
    let last = CpuId(task.queued_on.load(Ordering::Relaxed));
    let cpu = if area::of(last).is_idle() { last } else { idle_cpu().unwrap_or(last) };
    task.queued_on.store(cpu.0, Ordering::Relaxed);
    QUEUES[cpu.index()].lock().push_back(task);
    cpu
}

/// Puts the task that has just run at the end of its own CPU's queue.
pub fn push_back(cpu: CpuId, task: Arc<Task>) {
    task.queued_on.store(cpu.0, Ordering::Relaxed);
    QUEUES[cpu.index()].lock().push_back(task);
}

/// Takes the next task for a CPU: from its own queue, or else from the longest other one.
pub fn pop(cpu: CpuId) -> Option<Arc<Task>> {
    let own = QUEUES[cpu.index()].lock().pop_front();
    own.or_else(|| steal(cpu))
}

/// Whether a task waits for this CPU.
pub fn has_work(cpu: CpuId) -> bool {
    !QUEUES[cpu.index()].lock().is_empty()
}

/// How many tasks wait for a CPU.
pub fn waiting() -> usize {
    QUEUES[..area::count()].iter().map(|queue| queue.lock().len()).sum()
}

fn steal(thief: CpuId) -> Option<Arc<Task>> {
    let others = (0..area::count()).filter(|&cpu| cpu != thief.index());
    let longest = others.max_by_key(|&cpu| QUEUES[cpu].lock().len())?;
    let task = QUEUES[longest].lock().pop_front()?;
    task.queued_on.store(thief.0, Ordering::Relaxed);
    Some(task)
}

fn idle_cpu() -> Option<CpuId> {
    (0..area::count() as u32).map(CpuId).find(|&cpu| area::of(cpu).is_idle())
}
