//! `movdir64b` on processors without it: the test traps and emulates it, so that the kernel's loop, its heads
//! and tails and the encoding of the instruction are tested on any machine.

use std::sync::atomic::{AtomicU64, Ordering};

use quire::arch::{ClearKernel, CpuFeatures, Feature};

use crate::clear::kernels::zeroes_exactly;

/// `movdir64b rdi, [rsi]` (Intel SDM volume 2B: 66 0F 38 F8 /r).
const ENCODED: [u8; 5] = [0x66, 0x0f, 0x38, 0xf8, 0x3e];

static DONE: AtomicU64 = AtomicU64::new(0);

/// Emulates the instruction at which the thread was stopped; anything else is an ordinary fault.
extern "C" fn emulate(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the third argument of a handler that was set with SA_SIGINFO is the stopped thread's context.
    // Its instruction pointer points to the undefined instruction, and `rdi` and `rsi` hold that
    // instruction's operands.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize];
        let code: [u8; 5] = (at as *const [u8; 5]).read_unaligned();
        let to = registers[libc::REG_RDI as usize] as *mut [u8; 64];
        let from = registers[libc::REG_RSI as usize] as *const [u8; 64];
        if code != ENCODED || !to.addr().is_multiple_of(64) {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
            return;
        }
        to.write(from.read_unaligned());
        registers[libc::REG_RIP as usize] = at + ENCODED.len() as i64;
        DONE.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn movdir64b_is_right_where_it_is_trapped() {
    if CpuFeatures::detect().has(Feature::Movdir64b) {
        return zeroes_exactly(ClearKernel::Movdir64b.on(CpuFeatures::detect()).unwrap(), 400);
    }
    // SAFETY: the handler has the form that SA_SIGINFO asks for, and lives as long as the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = emulate as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
    }
    let before = DONE.load(Ordering::Relaxed);
    store_zeroes();
    let is_trapped = DONE.load(Ordering::Relaxed) > before;
    // SAFETY: the handler emulates the feature, or the processor has it although CPUID hides it.
    let features = unsafe { CpuFeatures::assume(&[Feature::Movdir64b]) };
    zeroes_exactly(ClearKernel::Movdir64b.on(features).unwrap(), 100);
    let met = DONE.load(Ordering::Relaxed) - before;
    assert!(!is_trapped || met > 1000, "the instruction was met {met} times");
}

/// Executes the instruction once. A hypervisor may hide it (CPUID leaf 7) but cannot disable it.
fn store_zeroes() {
    #[repr(align(64))]
    struct Line([u8; 64]);
    let (from, mut to) = (Line([0; 64]), Line([1; 64]));
    // SAFETY: both operands are an aligned line and live on. A processor without the instruction traps to the
    // handler.
    unsafe {
        core::arch::asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x3e", in("rdi") &raw mut to, in("rsi") &raw const from);
    }
    assert_eq!(to.0, [0; 64]);
}
