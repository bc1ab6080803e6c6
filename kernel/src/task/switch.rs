//! The switch from one kernel stack to another.

use core::arch::naked_asm;
use core::ptr;

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

/// The instruction and the frame pointer with which a stack pointer that was stored goes on.
///
/// # Safety
/// It was stored by [`switch_stacks`] or made by [`prepare`], and its code does not run.
pub unsafe fn goes_on_at(stack_pointer: u64) -> [u64; 2] {
    let words = ptr::with_exposed_provenance::<u64>(stack_pointer as usize);
    // SAFETY: X4: six registers and the address stand there; RBP is the fifth from below.
    unsafe { [words.add(6).read(), words.add(4).read()] }
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
        // SAFETY: X4: the stack is new, and its bytes are the caller's.
        unsafe { frame.add(word).write(value) };
    }
    frame.addr() as u64
}
