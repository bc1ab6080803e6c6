//! The processor's flags: the trap flag, which stops it after each instruction, and the price of turning
//! interrupts off and on in a kernel.

#![allow(unsafe_code)]

use std::arch::asm;

/// The processor's trap flag: an exception after each instruction.
pub(crate) const TRAP_FLAG: i64 = 1 << 8;

/// The processor stops after each instruction of this thread and runs the signal's handler, until this is
/// dropped or instructions are no longer counted. In the handler of an outer one, stepping starts and ends
/// with the inner one.
pub(crate) struct Stepping {
    before: bool,
}

impl Stepping {
    pub(crate) fn start() -> Self {
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
pub(crate) struct Running {
    stepped: bool,
}

impl Running {
    pub(crate) fn start() -> Self {
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

/// The first trap comes after the instruction that follows `popfq`; a `nop`, so that none of the caller's instructions is missed.
pub(crate) fn set_trap_flag() {
    // SAFETY: H7: changes the trap flag alone, whose handler is installed (`prepare`). The block may use the stack, as it
    // does not promise otherwise.
    unsafe { asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", "nop", flag = const TRAP_FLAG) };
}

fn clear_trap_flag() {
    // SAFETY: H7: changes the trap flag alone, through the stack.
    unsafe { asm!("pushfq", "and qword ptr [rsp], {rest}", "popfq", rest = const !TRAP_FLAG) };
}

/// Saves the processor's flags, as a kernel does when it turns interrupts off. The `cli` that follows there
/// is privileged.
#[inline]
pub(crate) fn save_flags() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    let flags;
    // SAFETY: H7: reads the flags through the stack, and changes none.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags
}

/// Executes the `popfq` by which a kernel restores its flags. They stay as they are: a handler that runs meanwhile, or the
/// end of stepping, has set the trap flag as it must be now. As far as a process can measure, the cost does not depend on the
/// interrupt flag.
#[inline]
pub(crate) fn restore_flags() {
    if cfg!(miri) {
        return;
    }
    // SAFETY: H7: changes no flag that a process can change, through the stack.
    unsafe { asm!("pushfq", "popfq") };
}
