//! Who runs: sleeping, waking and switching.
//!
//! # States
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `RUNNING` | runs, or waits in a run queue | `park`, to `PARKED`; `wake`, to `NOTIFIED` |
//! | `NOTIFIED` | runs, and the next `park` returns at once | `park`, to `RUNNING`; `wake` writes it again |
//! | `PARKED` | sleeps | `wake`, to `RUNNING`; the waker puts it in a run queue |
//!
//! A task that waits for a condition first enters a wait queue, then checks the condition, then parks. A waker
//! changes the condition, then wakes. So no wake-up is lost, and a wake-up may come for nothing.
//!
//! Each `wake` and each `park` changes the state in one atomic step that reads what the one before wrote, also where the
//! value stays the same. So a `park` that uses up a wake-up sees what its waker changed. With a load or a store instead,
//! the processor could delay the store behind a later load: a waker that still finds `NOTIFIED` would do nothing, while
//! the task still finds the old condition, and sleeps.
//!
//! A woken task may be in a queue before its own CPU has left its stack. `on_cpu` says when it has: the next task clears
//! it (*release*). Until then other CPUs pass it by (*acquire*), and none waits for it: two CPUs that each want the
//! task which the other one is about to leave would wait for ever.

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;

use quire::cpu::CpuId;
use x86_64::instructions::interrupts;

use super::run_queue;
use super::signal::deliver;
use super::switch::switch_stacks;
use super::thread::{Task, load_fs_base};
use crate::cpu::area::{self, Handover, Leaves};
use crate::cpu::ipi;
use crate::observe::note_idle;
use crate::observe::usage::note_switch;
use crate::sync::IrqLock;
use crate::time::timer;

const RUNNING: u8 = 0;
const NOTIFIED: u8 = 1;
const PARKED: u8 = 2;

static IDLE: [IrqLock<Option<Arc<Task>>>; area::MAX_CPUS] = [const { IrqLock::new(None) }; area::MAX_CPUS];

/// The running task.
pub fn current() -> Arc<Task> {
    let task = area::current().cast::<Task>();
    // SAFETY: X4: the CPU holds a strong reference to the running task, from which this is counted up.
    unsafe {
        Arc::increment_strong_count(task);
        Arc::from_raw(task)
    }
}

/// The running task, for as long as the caller runs in it.
pub fn current_ref() -> &'static Task {
    // SAFETY: X4: the CPU holds a strong reference to the task that runs, and the caller is that task: what
    // it has on its stack does not outlive it.
    unsafe { &*area::current().cast::<Task>() }
}

/// The running task, as [`current_ref`]; `None` while the kernel starts.
#[inline]
pub fn running() -> Option<&'static Task> {
    // SAFETY: X4: the CPU holds a strong reference to the task that runs, or the word is null.
    unsafe { area::current().cast::<Task>().as_ref() }
}

/// Whether a task runs already: false while the kernel starts.
pub fn is_started() -> bool {
    running().is_some()
}

/// Makes the running code the idle task of its CPU.
pub fn become_idle_task(task: Arc<Task>) {
    let cpu = area::cpu_id();
    *IDLE[cpu.index()].lock() = Some(task.clone());
    area::this().set_current(Arc::into_raw(task).cast());
}

/// Lets a task run for the first time.
pub fn start(task: Arc<Task>) {
    kick(run_queue::push(task));
}

/// Sleeps until [`wake`], or returns at once if that came before.
pub fn park() {
    let task = current_ref();
    let parked = task.state.compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire);
    match parked {
        Ok(_) => switch_away(Leaves::Asleep),
        Err(_) => _ = task.state.swap(RUNNING, Ordering::AcqRel),
    }
}

/// Ends a task's sleep, or its next one. May be called from handlers.
pub fn wake(task: &Arc<Task>) {
    let next = |state| match state {
        RUNNING | NOTIFIED => Some(NOTIFIED),
        PARKED => Some(RUNNING),
        _ => None,
    };
    if task.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(PARKED) {
        kick(run_queue::push(task.clone()));
    }
}

/// As [`wake`]. A program that runs on another CPU is interrupted, so that its task sees what it must do first.
///
/// The caller has stored that before. A task that goes to another CPU meanwhile looks on its way to its program there.
pub fn interrupt(task: &Arc<Task>) {
    wake(task);
    let cpu = CpuId(task.queued_on.load(Ordering::Relaxed));
    if task.on_cpu.load(Ordering::Relaxed) && cpu != area::cpu_id() {
        ipi::reschedule(cpu);
    }
}

/// Whether a task sleeps.
pub fn is_parked(task: &Task) -> bool {
    task.state.load(Ordering::Relaxed) == PARKED
}

/// Lets other tasks run, if any wait. The running task goes to the end of the queue.
pub fn schedule() {
    make_way(Leaves::Preempted);
}

/// Whether a task is still on a CPU on which its program may not run.
pub fn runs_where_forbidden(task: &Task) -> bool {
    let cpu = CpuId(task.queued_on.load(Ordering::Relaxed));
    task.on_cpu.load(Ordering::Acquire) && !task.allowed.contains(cpu)
}

/// Leaves the CPU if the running task's program may not run there any more.
pub fn leave_forbidden_cpu(task: &Task) {
    if !task.allowed.contains(area::cpu_id()) {
        make_way(Leaves::Moved);
    }
}

fn make_way(leaves: Leaves) {
    area::this().set_need_resched(false);
    switch_away(leaves);
}

/// Between the parts of a long call: lets other tasks run if its time is up. Returns whether a signal wants to end it.
pub fn call_shall_end() -> bool {
    if area::this().need_resched() {
        schedule();
    }
    current_ref().is_interrupted()
}

/// As [`call_shall_end`], for a call that no handler interrupts: only what ends the process ends it.
pub fn call_must_end() -> bool {
    if area::this().need_resched() {
        schedule();
    }
    let task = current_ref();
    task.needs_attention() && (task.is_dying() || deliver::ends_process(task))
}

/// Turns of a loop that waits for another task until that may need this CPU.
const TURNS: u32 = 32;

/// Now and then lets other tasks run, in a loop that waits for one of them, if nothing forbids it here.
pub fn let_others_run() {
    let area = area::this();
    if !area.next_turn().is_multiple_of(TURNS) || !area.may_switch() || !is_started() {
        return;
    }
    if !interrupts::are_enabled() || run_queue::waiting() == 0 {
        return;
    }
    if area.is_idle() {
        area.set_idle(false);
        switch_away(Leaves::Asleep);
        area.set_idle(true);
    } else {
        make_way(Leaves::Spinning);
    }
}

/// Waits until no other task runs or can run, so that what ended tasks had is free.
pub fn wait_until_alone() {
    let is_alone = || {
        let others = ipi::others();
        run_queue::waiting() == 0 && others.iter().all(|cpu| area::of(cpu).is_idle())
    };
    while is_started() && !is_alone() {
        schedule();
        core::hint::spin_loop();
    }
}

/// Ends the running task: its stack is never used again.
pub fn end_task() -> ! {
    interrupts::disable();
    // A wake-up must not put it in a queue again.
    current_ref().state.store(NOTIFIED, Ordering::Release);
    switch_away(Leaves::Asleep);
    unreachable!("a task that has ended runs");
}

/// What a CPU does when no task wants it.
///
/// `wait` turns interrupts on and waits for one, or does something useful for a while.
pub fn idle_loop(wait: impl Fn()) -> ! {
    loop {
        note_idle(area::cpu_id(), true);
        area::this().set_idle(true);
        interrupts::disable();
        // It may have been meant for the task that ran here before, which slept before it looked. Left as it is, it would
        // say that a task wants this CPU, which then clears nothing until the next one comes.
        area::this().set_need_resched(false);
        if run_queue::has_work_for(area::cpu_id()) {
            area::this().set_idle(false);
            note_idle(area::cpu_id(), false);
            interrupts::enable();
            switch_away(Leaves::Asleep);
        } else {
            wait();
        }
    }
}

/// Tells a CPU that a task waits in its queue.
fn kick(cpu: CpuId) {
    if cpu == area::cpu_id() {
        others_wait();
    } else {
        ipi::reschedule(cpu);
    }
}

/// A task has come to wait for this CPU: the idle task stops what it does, and another one's time slice ends some
/// time.
pub fn others_wait() {
    if area::this().is_idle() {
        area::this().set_need_resched(true);
    } else {
        timer::begin_missing_slice();
    }
}

/// Switches to the next task, or to the idle task if there is none. A task that can run on does so if it is alone.
fn switch_away(leaves: Leaves) {
    debug_assert!(area::this().may_switch(), "a task that holds a spin lock must not be switched away from");
    let enabled = interrupts::are_enabled();
    interrupts::disable();
    let cpu = area::cpu_id();
    let previous = area::current().cast::<Task>();
    let next = match run_queue::pop(cpu, previous) {
        Some(task) => task,
        None if matches!(leaves, Leaves::Preempted | Leaves::Spinning) => {
            let is_limited = note_limited(current_ref());
            // Those that wait could not be taken yet.
            if is_limited || run_queue::has_work(cpu) {
                timer::begin_slice(true);
            }
            return restore(enabled);
        }
        None => idle_task(cpu),
    };
    if core::ptr::eq(Arc::as_ptr(&next), previous) {
        // Woken on the way here. The CPU has its reference already.
        return restore(enabled);
    }
    // SAFETY: X3, X4: interrupts are off; `previous` is the running task, whose reference the CPU holds until
    // the handover; `next` runs nowhere, and was taken out of its queue.
    unsafe { switch_to(&*previous, next, leaves) };
    restore(enabled);
}

/// Whether the time that a task may use is limited. If so, it looks on its way to its program how much it has used.
fn note_limited(task: &Task) -> bool {
    let process = &task.process;
    let is_limited = process.limits.bounds_processor_time() || process.has_timers.load(Ordering::Relaxed);
    if is_limited {
        task.set_signal_flag();
    }
    is_limited
}

/// The idle task of the running CPU, marked as on a CPU.
fn idle_task(cpu: CpuId) -> Arc<Task> {
    let task = IDLE[cpu.index()].lock().clone().expect("each CPU has an idle task");
    task.on_cpu.store(true, Ordering::Relaxed);
    task
}

fn restore(enabled: bool) {
    if enabled {
        interrupts::enable();
    }
}

/// # Safety
/// Interrupts are off. `previous` runs on this CPU, and `next`, marked as on a CPU, runs nowhere.
unsafe fn switch_to(previous: &Task, next: Arc<Task>, leaves: Leaves) {
    note_switch(previous, &next);
    if previous.rseq.is_registered() {
        previous.set_rseq_flag();
    }
    let ends = note_limited(&next) || leaves != Leaves::Asleep || run_queue::has_work(area::cpu_id());
    let area = area::this();
    let next = ManuallyDrop::new(next);
    // SAFETY: X3: the caller switches from one task to the other.
    unsafe { load_user_context(previous, &next) };
    // The previous task, if it can run on, is not in the queue yet, but waits for this CPU from now on.
    timer::begin_slice(ends);
    area.handover.set(Handover { previous: core::ptr::from_ref(previous).cast(), leaves });
    area.set_current(Arc::as_ptr(&next).cast());
    // SAFETY: X4: the stack pointer was stored when `next` was switched away from, or made for its first run.
    unsafe { switch_stacks(previous.stack_pointer.get(), *next.stack_pointer.get()) };
    finish_switch();
}

/// Loads what a program's thread has in the processor.
///
/// # Safety
/// As for [`switch_to`].
unsafe fn load_user_context(previous: &Task, next: &Task) {
    // SAFETY: X3: the caller switches between these tasks.
    let (from, to) = unsafe { (previous.space_to_load(), next.space_to_load()) };
    match (from, to) {
        (Some(from), Some(to)) => from.switch_to(to),
        (Some(from), None) => from.switch_out(),
        (None, Some(to)) => to.switch_in(),
        (None, None) => {}
    }
    if from.is_some() {
        // SAFETY: X3: the task is the running one until the stacks are switched.
        unsafe { previous.user().fpu.save() };
    }
    // Also for a task without an address space: it may be about to execute its first program.
    let end = next.registers().wrapping_add(1).addr() as u64;
    // SAFETY: X2, X3: interrupts are off, the task is about to run, and these are its registers.
    unsafe { area::this().set_registers_end(end) };
    if to.is_some() {
        // SAFETY: X3: interrupts are off, the task is about to run, and its program does not run yet.
        let user = unsafe { next.user() };
        user.fpu.restore();
        load_fs_base(user.fs_base);
    }
}

/// The first thing that a task does after a switch: the task before it has left its stack.
pub fn finish_switch() {
    let Handover { previous, leaves } = area::this().handover.get();
    // SAFETY: X4: the CPU's reference to the task that it ran before goes to this value.
    let previous = unsafe { Arc::from_raw(previous.cast::<Task>()) };
    previous.on_cpu.store(false, Ordering::Release);
    match leaves {
        Leaves::Asleep => {}
        Leaves::Preempted | Leaves::Moved => kick(run_queue::push(previous)),
        Leaves::Spinning => run_queue::push_back(area::cpu_id(), previous),
    }
}
