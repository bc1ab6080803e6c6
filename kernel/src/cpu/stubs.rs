//! The assembly between programs and the kernel.
//!
//! A program runs by [`enter_user`], which *returns* when the program traps or makes a system call. So the kernel
//! reads as a loop: run the program, look why it stopped, do what it needs (`crate::program::process`).
//!
//! The processor's stack pointer for traps from programs is set to the end of the program's [`Registers`]: what the
//! processor and the stub push fills the structure, and nothing is copied.

use core::arch::{global_asm, naked_asm};

use super::registers::{Registers, SYSTEM_CALL};

/// How many vectors have a stub: the processor's own traps, and interrupts.
pub const VECTORS: usize = 256;
/// How many bytes are between two stubs.
pub const STUB_BYTES: usize = 16;
/// The vectors for which the processor pushes an error code (SDM volume 3, table 6-1).
const WITH_ERROR_CODE: u64 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21;
/// The vectors that have a stack of their own, and end the kernel whatever they interrupt.
pub const FATAL: u32 = 1 << 2 | 1 << 8 | 1 << 18;

unsafe extern "C" {
    /// The first stub.
    pub safe static trap_stubs: u8;
    /// Where SYSCALL goes.
    pub safe static system_call_stub: u8;
}

macro_rules! push_registers {
    () => {
        "push rax; push rbx; push rcx; push rdx; push rsi; push rdi; push rbp
        push r8; push r9; push r10; push r11; push r12; push r13; push r14; push r15"
    };
}

macro_rules! pop_registers {
    () => {
        "pop r15; pop r14; pop r13; pop r12; pop r11; pop r10; pop r9; pop r8
        pop rbp; pop rdi; pop rsi; pop rdx; pop rcx; pop rbx; pop rax"
    };
}

global_asm!(
    r#"
    .text
    .global trap_stubs
    .balign 16
trap_stubs:
    .set vector, 0
    .rept {vectors}
    .balign {stub_bytes}
    .if vector < 32
    .ifeq ({with_error_code} >> vector) & 1
    push 0
    .endif
    .else
    push 0
    .endif
    push vector
    .if (vector < 32) && (({fatal} >> vector) & 1)
    jmp fatal_trap
    .else
    jmp trap
    .endif
    .set vector, vector + 1
    .endr

trap:
    "#,
    push_registers!(),
    r#"
    cld
    // A program may have let the kernel touch its memory (AC); traps do not forbid it again.
    clac
    test byte ptr [rsp + 18 * 8], 3
    jz trap_in_kernel
    swapgs

leave_user:
    // RSP is at the program's registers, which are complete. Return from `enter_user`.
    mov rsp, gs:[0]
    pop rbp; pop rbx
    ret

fatal_trap:
    "#,
    push_registers!(),
    r#"
    cld
    clac

trap_in_kernel:
    mov rdi, rsp
    // For backtraces: as if the interrupted code had called the handler.
    push [rsp + 17 * 8]
    push rbp
    mov rbp, rsp
    call kernel_trap
    add rsp, 16
    "#,
    pop_registers!(),
    r#"
    add rsp, 16
    iretq

    .global system_call_stub
system_call_stub:
    swapgs
    mov gs:[16], rsp
    mov rsp, gs:[8]
    push {user_data}
    push gs:[16]
    push r11
    push {user_code}
    push rcx
    push 0
    push {system_call}
    "#,
    push_registers!(),
    r#"
    cld
    jmp leave_user
    "#,
    vectors = const VECTORS,
    stub_bytes = const STUB_BYTES,
    with_error_code = const WITH_ERROR_CODE,
    fatal = const FATAL,
    user_data = const USER_DATA,
    user_code = const USER_CODE,
    system_call = const SYSTEM_CALL,
);

/// The selectors of `super::segments`, which `super::user_mode` compares with these.
pub const USER_DATA: u16 = 3 << 3 | 3;
/// See [`USER_DATA`].
pub const USER_CODE: u16 = 4 << 3 | 3;

/// Runs a program until it traps or makes a system call, and returns with its registers stored. Keeps RBX and RBP of
/// its caller, and no other register.
///
/// # Safety
/// Interrupts are off. GS leads to this CPU's [`CpuArea`](super::area::CpuArea), whose `registers_end`, like the task state's stack, is
/// the end of `registers`. The program's address space is loaded, and the registers are those of a program: its
/// segments, and an instruction pointer in its half.
#[unsafe(naked)]
pub unsafe extern "C" fn enter_user(registers: *mut Registers) {
    naked_asm!(
        "push rbx; push rbp",
        "mov gs:[0], rsp",
        "mov rsp, rdi",
        "cmp qword ptr [rsp + 15 * 8], {system_call}",
        "je 2f",
        pop_registers!(),
        "add rsp, 16",
        "swapgs",
        "iretq",
        // After a system call the program expects RCX and R11 to be lost, so the faster return may use them.
        "2:",
        pop_registers!(),
        "mov rcx, [rsp + 16]",
        "mov r11, [rsp + 32]",
        "mov rsp, [rsp + 40]",
        "swapgs",
        "sysretq",
        system_call = const SYSTEM_CALL,
    )
}
