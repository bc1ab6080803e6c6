//! Real interrupts of a thread: after every machine instruction (the processor's trap flag) or at a timer's
//! ticks. The host delivers both as signals.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

use super::ticker::{Ticker, refused};
use super::watch;
use crate::error::HostedError;
use crate::flags::TRAP_FLAG;
use crate::task::{TICK, Task, stepped, ticked};

/// Installs the handlers of both signals, once for the process.
pub(super) fn prepare() -> Result<(), HostedError> {
    static PREPARED: OnceLock<Result<(), HostedError>> = OnceLock::new();
    let prepare = || {
        // A blocked trap would kill the process, so a trap may arrive while one is handled.
        take_signal(Signal::SIGTRAP, "SIGTRAP", SaFlags::SA_NODEFER, on_step)?;
        // Ticks that arrive faster than they are handled must not pile up on the stack.
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
    // SAFETY: H7: `handler` is one of the two below, which touch only variables of the thread, keep `errno` and let no
    // panic out.
    let before = unsafe { sigaction(signal, &action) }.map_err(refused(name))?;
    if matches!(before.handler(), SigHandler::SigDfl) {
        return Ok(());
    }
    // SAFETY: H7: puts back the action that was there before.
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
    // SAFETY: H7: the handler was installed with `SA_SIGINFO`, so the host passes a valid record of the signal.
    let code = unsafe { (*info).si_code };
    // SAFETY: H7: the same for the context that the host will restore, which the handler may change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if !is_step(code, registers[libc::REG_EFL as usize]) {
        return die_of_foreign_trap(code);
    }
    let goes_on = keeping_errno(|| {
        Task::with(|task| {
            let counted = stepped(task);
            watch::looked(registers) || counted
        })
    });
    if !goes_on {
        registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    }
}

/// Whether the trap flag caused a trap. Below some hypervisors the debug status register loses its
/// single-step bit now and then; Linux then reports `TRAP_BRKPT`, which a breakpoint instruction
/// (`SI_KERNEL`) never is.
fn is_step(code: c_int, flags: i64) -> bool {
    code == libc::TRAP_TRACE || code == libc::TRAP_BRKPT && flags & TRAP_FLAG != 0
}

/// A breakpoint or a debugger's trap, which would have ended the process without this handler.
#[cold]
fn die_of_foreign_trap(code: c_int) {
    eprintln!("hosted: SIGTRAP with si_code {code}, which no stepping explains");
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: H7: the default action runs no code of this process.
    let _ = unsafe { sigaction(Signal::SIGTRAP, &action) };
    let _ = raise(Signal::SIGTRAP);
}

extern "C" fn on_tick(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: H7: the handler was installed with `SA_SIGINFO`; a signal that no timer sent has some other value there,
    // which is compared and never followed.
    let ticker = unsafe { (*info).si_value() }.sival_ptr.cast_const().cast::<Ticker>();
    keeping_errno(|| {
        if Task::with(|task| ticked(task, ticker.cast())) {
            // SAFETY: H6: the source of this timer is on the list, so the timer lives.
            unsafe { (*ticker).again() };
        }
    });
}
