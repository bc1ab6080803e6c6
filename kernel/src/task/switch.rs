//! The switch from one kernel stack to another.

use core::arch::naked_asm;

/// Stores the running code's state on its stack, and the stack pointer at `from`. Goes on with the state that stands
/// on the stack `to`. Returns when another switch comes back to `from`'s stack.
///
/// # Safety
/// Interrupts are off. `to` was stored by an earlier switch or made by [`prepare`], and is used once.
#[unsafe(naked)]
pub unsafe extern "C" fn switch_stacks(from: *mut u64, to: u64) {
    naked_asm!(
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
    )
}

/// Writes the state of a task that begins at `start`, which never returns, on the stack that ends at `end`. Returns
/// its stack pointer.
///
/// # Safety
/// The 64 bytes below `end`, a multiple of 16, are mapped, writable and the caller's.
pub unsafe fn prepare(end: *mut u64, start: extern "C" fn() -> !) -> u64 {
    // Six registers, the address that `ret` takes, and a zero word where `start` would find its return address: so
    // the stack is aligned as a call leaves it, and backtraces end.
    let frame = end.wrapping_sub(8);
    for word in 0..8 {
        let value = if word == 6 { start as usize as u64 } else { 0 };
        // SAFETY: the caller owns the bytes.
        unsafe { frame.add(word).write(value) };
    }
    frame.addr() as u64
}
