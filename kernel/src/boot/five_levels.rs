//! Switches the processor to page tables of five levels, which needs paging off.

use core::arch::global_asm;

use quire::addr::PhysAddr;
use x86_64::registers::control::{Cr4, Cr4Flags};

unsafe extern "C" {
    safe static boot_five_levels: u8;
}

/// Whether the processor has five levels, and the option `la57=off` does not forbid them.
pub fn wanted(command_line: &[u8]) -> bool {
    crate::cpu::features::can_have_five_levels()
        && super::command::option_of(command_line, "la57") != Some("off")
}

/// Whether they are on.
pub fn are_on() -> bool {
    Cr4::read().contains(Cr4Flags::L5_PAGING)
}

/// Turns them on and enters the kernel again from its first instruction in 64-bit mode.
///
/// # Safety
/// The boot tables are loaded, interrupts are off, and nothing that the kernel did so far needs to be kept.
pub unsafe fn enter_again(start_info: PhysAddr) -> ! {
    let low = (&raw const boot_five_levels).addr();
    // SAFETY: X1: the code runs at its physical address, which the boot tables map; it takes the address in
    // EBX.
    unsafe {
        core::arch::asm!(
            "mov rbx, {start_info}",
            "jmp {code}",
            start_info = in(reg) start_info.0,
            code = in(reg) low,
            options(noreturn),
        )
    }
}

global_asm!(
    r#"
    .section .boot.text, "ax"
    .code64
    .global boot_five_levels
boot_five_levels:
    // Through a 32-bit code segment, since paging cannot be turned off in 64-bit mode.
    lgdt boot_gdt_pointer
    pushq $16
    leaq 1f(%rip), %rax
    pushq %rax
    lretq
    .code32
1:
    movl %cr0, %eax
    andl $0x7fffffff, %eax
    movl %eax, %cr0
    movl %cr4, %eax
    orl ${cr4_la57}, %eax
    movl %eax, %cr4
    movl $boot_pml5, %eax
    movl %eax, %cr3
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ljmp $8, $long_mode
    .code64
    "#,
    cr4_la57 = const 1 << 12,
    options(att_syntax)
);
