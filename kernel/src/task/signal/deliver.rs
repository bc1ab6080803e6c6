//! Taking signals, on the way back to the program.

use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;

use super::action::{Action, Effect};
use super::info::SigInfo;
use super::own::Own;
use super::{COUNT, SignalSet, frame, send, set_of};
use crate::errno::Errno;
use crate::task::thread::Task;
use crate::task::{rseq, table, timers};

/// Takes the running task's signals, until one runs a handler or none is left. A call that a signal interrupted is
/// made again if it may be.
pub fn deliver_pending(task: &Task) {
    task.clear_signal_flag();
    loop {
        wait_while_stopped(task);
        if task.is_dying() {
            return;
        }
        let Some((info, continuations)) = take(task, |own| !own.mask) else { break };
        let action = task.process.signals.action(info.signal);
        match action.effect(info.signal) {
            Effect::Ignore | Effect::Continue => {}
            Effect::Terminate => return send::terminate(task, info),
            // The terminal stops no process that is left without a shell.
            Effect::Stop if info.signal != abi::SIGSTOP && table::is_orphaned(&task.process) => {}
            Effect::Stop => send::stop(&task.process, info.signal, continuations),
            Effect::Handle => {
                restart_call(task, Some(&action));
                run_handler(task, info, action);
            }
        }
    }
    restart_call(task, None);
    send::change(task, Own::restore_mask);
}

/// Takes a signal that the running task or its process was sent, of those that it wants. Says also how often the process
/// had been continued then.
pub fn take(task: &Task, wanted: impl FnOnce(&Own) -> SignalSet) -> Option<(SigInfo, u64)> {
    let mut own = task.signals.0.lock();
    let wanted = wanted(&own);
    // Under the lock of the queue: `SIGCONT` takes the stops out of all queues before it is counted.
    let count = |info| (info, task.process.continuations.load(Ordering::Relaxed));
    let found = own.pending.take(wanted).map(count).or_else(|| {
        let mut shared = task.process.signals.pending.lock();
        shared.take(wanted).map(count)
    });
    drop(own);
    let (mut info, continuations) = found?;
    timers::taken(&task.process, &mut info);
    Some((info, continuations))
}

/// The signals that the task could take now.
pub fn ready(task: &Task) -> SignalSet {
    let own = task.signals.0.lock();
    (own.pending.set() | task.process.signals.pending.lock().set()) & !own.mask
}

/// Whether one of the signals that the task could take now ends its process.
pub fn ends_process(task: &Task) -> bool {
    let ready = ready(task);
    let ends = |signal| task.process.signals.action(signal).effect(signal) == Effect::Terminate;
    (1..=COUNT).any(|signal| ready & set_of(signal) != 0 && ends(signal))
}

fn wait_while_stopped(task: &Task) {
    let process = &task.process;
    if process.stopped.load(Ordering::Acquire) {
        process.continued.wait_uninterruptible(|| {
            let goes_on = !process.stopped.load(Ordering::Acquire) || process.exit().is_some();
            // A task that dumps the process's core waits for this one.
            (goes_on || task.is_dying()).then_some(())
        });
    }
}

/// An interrupted call returns `EINTR` to a handler that did not ask for more, and after each handler if its time is
/// limited. Otherwise it is made again.
fn restart_call(task: &Task, handler: Option<&Action>) {
    if handler.is_some() {
        // It makes calls of its own.
        task.set_repeats_call(false);
    }
    let Some(number) = task.take_interrupted_call() else { return };
    let restarts = |action: &Action| action.has(abi::SA_RESTART) && restarts(number) && !task.has_call_end();
    // SAFETY: X3: the task is the running one, and its program does not run.
    let registers = &mut unsafe { task.user() }.registers;
    let again = handler.is_none_or(restarts) || makes_task(number) || locks(number, registers.rsi);
    if again && registers.rax == Errno::EINTR.as_result() {
        task.set_repeats_call(handler.is_none());
        registers.rax = number;
        // The length of SYSCALL.
        registers.rip -= 2;
        registers.rcx = registers.rip;
    }
}

/// Calls that return `EINTR` after every handler (`signal(7)`).
fn restarts(number: u64) -> bool {
    !matches!(
        number as u32,
        abi::__NR_poll
            | abi::__NR_ppoll
            | abi::__NR_select
            | abi::__NR_pselect6
            | abi::__NR_epoll_wait
            | abi::__NR_epoll_pwait
            | abi::__NR_epoll_pwait2
            | abi::__NR_nanosleep
            | abi::__NR_clock_nanosleep
            | abi::__NR_pause
            | abi::__NR_rt_sigsuspend
            | abi::__NR_rt_sigtimedwait
            | abi::__NR_semop
            | abi::__NR_semtimedop
    )
}

/// Calls that no program expects to be interrupted.
fn makes_task(number: u64) -> bool {
    matches!(number as u32, abi::__NR_clone | abi::__NR_clone3 | abi::__NR_fork | abi::__NR_vfork)
}

/// A futex with an owner, which is waited for until it is held.
fn locks(number: u64, operation: u64) -> bool {
    let command = operation as u32 & !(abi::FUTEX_PRIVATE_FLAG | abi::FUTEX_CLOCK_REALTIME);
    number as u32 == abi::__NR_futex
        && matches!(command, abi::FUTEX_LOCK_PI | abi::FUTEX_LOCK_PI2 | abi::FUTEX_WAIT_REQUEUE_PI)
}

/// Lets the program go on in its handler.
fn run_handler(task: &Task, info: SigInfo, action: Action) {
    let pushed = rseq::settle(task).and_then(|()| frame::push(task, info, action));
    if pushed.is_err() {
        // The stack has no room for the frame, or what the program says of its restartable sequence makes no sense.
        let fault = SigInfo::kernel_fault(abi::SIGSEGV);
        if info.signal == abi::SIGSEGV {
            return send::terminate(task, fault);
        }
        return send::force(task, fault);
    }
    let itself = if action.has(abi::SA_NODEFER) { 0 } else { set_of(info.signal) };
    send::change(task, |own| own.mask |= action.mask | itself);
    if action.has(abi::SA_RESETHAND) {
        task.process.signals.set_action(info.signal, Action::default());
    }
}
