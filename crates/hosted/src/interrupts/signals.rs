//! Interrupts that really interrupt: after every machine instruction (the processor's trap flag) or at a timer's ticks,
//! both of which the host hands to the thread as signals, and the processor's flags as interrupts would change them.

#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, SigmaskHow, Signal, raise, sigaction,
};
use nix::sys::time::TimeSpec;
use rustix::io::Errno;

use super::{source, watch};
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
        // A trap that is held back, because one is being handled, would kill the process.
        take_signal(Signal::SIGTRAP, "SIGTRAP", SaFlags::SA_NODEFER, on_step)?;
        // Ticks that are faster than the host handles them must not pile up on the stack.
        take_signal(TICK, "SIGVTALRM", SaFlags::empty(), on_tick)
    };
    *PREPARED.get_or_init(prepare)
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The handlers run on the interrupted stack, where the host leaves the red zone alone.
fn take_signal(
    signal: Signal,
    name: &'static str,
    flags: SaFlags,
    handler: Handler,
) -> Result<(), HostedError> {
    let flags = flags | SaFlags::SA_SIGINFO | SaFlags::SA_RESTART;
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
    let code = unsafe { (*info).si_code };
    // SAFETY: the host gives a handler with `SA_SIGINFO` the context that it will put back, for it to change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if !is_step(code, registers[libc::REG_EFL as usize]) {
        return die_of_foreign_trap(code);
    }
    let goes_on = keeping_errno(|| {
        Task::with(|task| {
            let counted = source::stepped(task);
            watch::looked(task, registers) || counted
        })
    });
    if !goes_on {
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

/// Whether a trap came of the trap flag. Below some hypervisors the debug status register has lost its single-step bit
/// now and then; Linux calls the exception `TRAP_BRKPT` then, which a breakpoint instruction (`SI_KERNEL`) never is.
fn is_step(code: c_int, flags: i64) -> bool {
    code == libc::TRAP_TRACE || code == libc::TRAP_BRKPT && flags & TRAP_FLAG != 0
}

/// A breakpoint or a debugger's trap, which would have ended the process without this handler.
#[cold]
fn die_of_foreign_trap(code: c_int) {
    eprintln!("hosted: SIGTRAP with si_code {code}, which no stepping explains");
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs nothing of this process.
    let _ = unsafe { sigaction(Signal::SIGTRAP, &action) };
    let _ = raise(Signal::SIGTRAP);
}

extern "C" fn on_tick(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the host gives a handler with `SA_SIGINFO` what is known of the signal; one that no timer sent has some
    // other value there, which is compared and never followed.
    let ticker = unsafe { (*info).si_value() }.sival_ptr.cast_const().cast::<Ticker>();
    keeping_errno(|| Task::with(|task| source::ticked(task, ticker)));
}

/// The processor stops after each instruction of this thread, and [`on_step`] runs, until this is dropped or nobody counts
/// instructions any more. In the handler of an outer one, stepping starts and ends with the inner one.
pub(super) struct Stepping {
    before: bool,
}

impl Stepping {
    pub(super) fn start() -> Self {
        let before = is_stepping();
        set_trap_flag();
        Self { before }
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        if !self.before {
            clear_trap_flag();
        }
    }
}

/// This thread runs at full speed until this is dropped.
pub(super) struct Running {
    stepped: bool,
}

impl Running {
    pub(super) fn start() -> Self {
        let stepped = is_stepping();
        if stepped {
            clear_trap_flag();
        }
        Self { stepped }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.stepped {
            set_trap_flag();
        }
    }
}

fn is_stepping() -> bool {
    save_flags() & TRAP_FLAG as u64 != 0
}

/// The first trap comes after the instruction that follows `popfq`; a `nop`, so that none of anybody else's is missed.
fn set_trap_flag() {
    // SAFETY: changes the trap flag alone. The block may use the stack, as it does not promise otherwise.
    unsafe { asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", "nop", flag = const TRAP_FLAG) };
}

fn clear_trap_flag() {
    // SAFETY: as for `set_trap_flag`.
    unsafe { asm!("pushfq", "and qword ptr [rsp], {rest}", "popfq", rest = const !TRAP_FLAG) };
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

/// Lets ticks of other timers in while a tick is being handled, until dropped.
pub(super) struct TicksIn(Option<SigSet>);

impl TicksIn {
    pub(super) fn open() -> Self {
        let tick = SigSet::from_iter([TICK]);
        Self(tick.thread_swap_mask(SigmaskHow::SIG_UNBLOCK).ok())
    }
}

impl Drop for TicksIn {
    fn drop(&mut self) {
        // It cannot fail for a mask that the host gave.
        let _ = self.0.as_ref().map(SigSet::thread_set_mask);
    }
}

/// The shortest time between a tick and the next; what the host takes for one would else be all that is done.
const SHORTEST: Duration = Duration::from_micros(20);

/// A timer that interrupts the thread that started it, until dropped.
pub(super) struct Ticker {
    timer: OnceCell<libc::timer_t>,
    period: Duration,
}

impl Ticker {
    pub(super) fn new(period: Duration) -> Self {
        Self { timer: OnceCell::new(), period: period.max(SHORTEST) }
    }

    /// Starts; a tick brings this value's address.
    pub(super) fn start(&self) -> Result<(), HostedError> {
        let notify = SigevNotify::SigevThreadId {
            signal: TICK,
            thread_id: rustix::thread::gettid().as_raw_nonzero().get(),
            si_value: std::ptr::from_ref(self).addr() as isize,
        };
        let mut event = SigEvent::new(notify).sigevent();
        let mut timer = std::ptr::null_mut();
        // SAFETY: both places are this function's own; the host writes the timer's name into the second.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        nix::errno::Errno::result(made).map_err(refused("the timer"))?;
        let _ = self.timer.set(timer);
        self.again();
        Ok(())
    }

    /// Lets the next tick come a period from now. Not every period: a tick that is due while another one is handled
    /// would follow at once, and leave the work below no time.
    pub(super) fn again(&self) {
        let Some(&timer) = self.timer.get() else { return };
        let next = *TimeSpec::from_duration(self.period).as_ref();
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let when = libc::itimerspec { it_interval: never, it_value: next };
        // SAFETY: the timer exists until this value is dropped. It cannot fail for a time that is none too large, and
        // then there are no more ticks.
        unsafe { libc::timer_settime(timer, 0, &raw const when, std::ptr::null_mut()) };
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some(&timer) = self.timer.get() {
            // SAFETY: made by `start`, and nobody uses its name any more.
            unsafe { libc::timer_delete(timer) };
        }
    }
}
