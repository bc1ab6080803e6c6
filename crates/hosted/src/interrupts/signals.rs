//! Interrupts that really interrupt: after every machine instruction (the processor's trap flag) or at a timer's ticks,
//! both of which the host hands to the thread as signals, and the processor's flags as interrupts would change them.

#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, raise, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use rustix::io::Errno;

use super::source;
use crate::error::HostedError;
use crate::task::Task;

/// The processor's trap flag: an exception after each instruction.
const TRAP_FLAG: i64 = 1 << 8;

/// The signal of the timers. Nobody else counts virtual time by it nowadays.
const TICK: Signal = Signal::SIGVTALRM;

fn refused(step: &'static str) -> impl Fn(nix::errno::Errno) -> HostedError {
    move |errno| HostedError::NoSignals { step, errno: Errno::from_raw_os_error(errno as i32) }
}

/// Makes the two signals come here, once for the process.
pub(super) fn prepare() -> Result<(), HostedError> {
    static PREPARED: OnceLock<Result<(), HostedError>> = OnceLock::new();
    let prepare = || {
        take_signal(Signal::SIGTRAP, "SIGTRAP", on_step)?;
        take_signal(TICK, "SIGVTALRM", on_tick)
    };
    *PREPARED.get_or_init(prepare)
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Neither signal is held back while its handler runs: interrupts nest, and a trap that is held back kills the process.
/// The handlers run on the interrupted stack, where the host leaves the red zone alone.
fn take_signal(signal: Signal, name: &'static str, handler: Handler) -> Result<(), HostedError> {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER | SaFlags::SA_RESTART;
    let action = SigAction::new(SigHandler::SigAction(handler), flags, SigSet::empty());
    // SAFETY: the handlers touch the running thread's own record, which has no destructor and needs none to be made, keep
    // `errno`, unwind into nobody, and run foreign code only as `Hosted`'s unsafe functions were promised it may.
    let before = unsafe { sigaction(signal, &action) }.map_err(refused(name))?;
    if matches!(before.handler(), SigHandler::SigDfl) {
        return Ok(());
    }
    // SAFETY: puts back what was there a moment ago.
    unsafe { sigaction(signal, &before) }.map_err(refused(name))?;
    Err(refused(name)(nix::errno::Errno::EBUSY))
}

/// Runs `action` with the interrupted code's `errno` kept.
fn keeping_errno<R>(action: impl FnOnce() -> R) -> R {
    let errno = nix::errno::Errno::last_raw();
    let result = action();
    nix::errno::Errno::set_raw(errno);
    result
}

extern "C" fn on_step(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the host gives a handler with `SA_SIGINFO` what is known of the signal.
    if unsafe { (*info).si_code } != libc::TRAP_TRACE {
        return die_of_foreign_trap();
    }
    let goes_on = keeping_errno(|| Task::with(source::stepped));
    if !goes_on {
        // SAFETY: the host gives a handler with `SA_SIGINFO` the context that it will put back, for it to change.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

/// A breakpoint or a debugger's trap, which would have ended the process without this handler.
#[cold]
fn die_of_foreign_trap() {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs nothing of this process.
    let _ = unsafe { sigaction(Signal::SIGTRAP, &action) };
    let _ = raise(Signal::SIGTRAP);
}

extern "C" fn on_tick(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the host gives a handler with `SA_SIGINFO` what is known of the signal; one that no timer sent has some
    // other value there, which is a number to us and no address.
    let timer = unsafe { (*info).si_value() }.sival_ptr.addr();
    keeping_errno(|| Task::with(|task| source::ticked(task, timer)));
}

/// The processor stops after each instruction of this thread, and [`on_step`] runs, until this is dropped or nobody counts
/// instructions any more. In the handler of an outer one, stepping starts and ends with the inner one.
pub(super) struct Stepping {
    before: bool,
}

impl Stepping {
    pub(super) fn start() -> Self {
        let before = save_flags() & TRAP_FLAG as u64 != 0;
        // SAFETY: changes the trap flag alone. The block may use the stack, as it does not promise otherwise.
        unsafe { asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", flag = const TRAP_FLAG) };
        Self { before }
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        if !self.before {
            // SAFETY: as for `start`.
            unsafe { asm!("pushfq", "and qword ptr [rsp], {rest}", "popfq", rest = const !TRAP_FLAG) };
        }
    }
}

/// What a kernel does when it turns interrupts off, as far as a process may: it keeps the processor's flags. The `cli`
/// that follows there is privileged.
#[inline]
pub(crate) fn save_flags() -> u64 {
    let flags;
    // SAFETY: reads the flags through the stack.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags
}

/// What a kernel does when it restores them: `popfq`, which costs the same whether the interrupt flag changes or not as far
/// as a process can see.
#[inline]
pub(crate) fn restore_flags(flags: u64) {
    // SAFETY: these are flags that `save_flags` found on this thread a moment ago: the direction flag is clear in both,
    // as everywhere in compiled code, and the processor ignores the privileged ones.
    unsafe { asm!("push {}", "popfq", in(reg) flags) };
}

/// A timer that interrupts the thread that made it, until dropped.
pub(super) struct Ticker {
    timer: Timer,
}

/// Numbers for timers, from 1.
pub(super) fn next_timer() -> usize {
    static TIMERS: AtomicUsize = AtomicUsize::new(1);
    TIMERS.fetch_add(1, Ordering::Relaxed)
}

impl Ticker {
    pub(super) fn start(number: usize, period: Duration) -> Result<Self, HostedError> {
        let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let notify = SigevNotify::SigevThreadId { signal: TICK, thread_id, si_value: number as isize };
        let timer =
            Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).map_err(refused("the timer"))?;
        let mut ticker = Self { timer };
        let period = Expiration::Interval(period.max(Duration::from_nanos(1)).into());
        ticker.timer.set(period, TimerSetTimeFlags::empty()).map_err(refused("the timer"))?;
        Ok(ticker)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        // `Timer` stays behind when a panic is under way; it shall at least be silent.
        let never = Expiration::OneShot(Duration::ZERO.into());
        let _ = self.timer.set(never, TimerSetTimeFlags::empty());
    }
}
