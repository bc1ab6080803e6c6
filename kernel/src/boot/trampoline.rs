//! The first instructions of the other CPUs: from real mode to Rust code in the higher half.
//!
//! A CPU that gets a start-up interrupt begins in real mode at a page below 1 MiB. The code here is copied there. It
//! loads the control registers that the first CPU wrote behind it, and jumps to the kernel. The tables that it
//! loads map this page, executable and not writable, besides the kernel; no other table does.

use core::arch::global_asm;
use core::mem::offset_of;

use quire::addr::{Frame, PhysAddr};
use x86_64::registers::control::{Cr0, Cr4};
use x86_64::registers::model_specific::Efer;

use super::{start_info::BootInfo, tables};
use crate::memory::layout;

/// The page, which the loader's memory map must call usable, and which Quire does not get. What it contains is
/// put back.
pub const PAGE: u64 = 0x8000;
const PAGE_BYTES: usize = 4096;
/// The number that a start-up interrupt carries.
pub const START_PAGE: u8 = (PAGE >> 12) as u8;

unsafe extern "C" {
    safe static trampoline_start: u8;
    safe static trampoline_values: u8;
    safe static trampoline_end: u8;
}

/// What a starting CPU loads. The assembly below knows the offsets.
#[repr(C)]
#[derive(Clone, Copy)]
struct Values {
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    stack: u64,
    argument: u64,
    entry: u64,
}

/// The page while CPUs start.
pub struct Trampoline {
    before: [u8; PAGE_BYTES],
    tables: Frame,
}

impl Trampoline {
    /// Copies the code to its page, if that is usable memory.
    pub fn prepare(info: BootInfo) -> Option<Self> {
        let covers = |start: u64, bytes: u64| start <= PAGE && PAGE + PAGE_BYTES as u64 <= start + bytes;
        if !info.usable_memory().any(|range| covers(range.start.0, range.bytes)) {
            return None;
        }
        let tables = tables::build_start_up(PhysAddr(PAGE))?;
        let mut before = [0; PAGE_BYTES];
        let length = (&raw const trampoline_end).addr() - (&raw const trampoline_start).addr();
        // SAFETY: X1: the page is usable memory below 1 MiB, which Quire is not given, in the direct map. No
        // code reads it until `drop`.
        unsafe {
            page().copy_to_nonoverlapping(before.as_mut_ptr(), PAGE_BYTES);
            page().copy_from_nonoverlapping(&raw const trampoline_start, length);
        }
        Some(Self { before, tables })
    }

    /// Sets what the next CPU does: it calls `entry` on this stack with this argument.
    pub fn set(&mut self, stack: *mut u64, entry: extern "C" fn(u64) -> !, argument: u64) {
        let values = Values {
            cr0: Cr0::read_raw(),
            cr3: self.tables.addr().0,
            cr4: Cr4::read_raw(),
            efer: Efer::read_raw(),
            // As after a call: the entry expects a return address at the top.
            stack: stack.addr() as u64 - 8,
            argument,
            entry: entry as usize as u64,
        };
        let offset = (&raw const trampoline_values).addr() - (&raw const trampoline_start).addr();
        // SAFETY: X1: the values' place is in the page, aligned, and no CPU is starting.
        unsafe { page().add(offset).cast::<Values>().write_volatile(values) };
    }
}

impl Drop for Trampoline {
    fn drop(&mut self) {
        // SAFETY: X1: the page is the one that `prepare` copied, and all CPUs have left it.
        unsafe { page().copy_from_nonoverlapping(self.before.as_ptr(), PAGE_BYTES) };
    }
}

fn page() -> *mut u8 {
    layout::direct_map(PhysAddr(PAGE))
}

global_asm!(
    r#"
    .section .rodata
    .balign 16
    .global trampoline_start
    .global trampoline_values
    .global trampoline_end
trampoline_start:
    .code16
    cli
    cld
    // The code segment is the page: all addresses are offsets in it.
    movw %cs, %ax
    movw %ax, %ds
    lgdtl trampoline_gdt_pointer - trampoline_start
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $({page} + trampoline_32 - trampoline_start)

    .code32
trampoline_32:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %ss
    movl $({page} + trampoline_values - trampoline_start), %ebx
    movl {cr4}(%ebx), %eax
    movl %eax, %cr4
    movl {cr3}(%ebx), %eax
    movl %eax, %cr3
    movl ${msr_efer}, %ecx
    movl {efer}(%ebx), %eax
    xorl %edx, %edx
    wrmsr
    movl {cr0}(%ebx), %eax
    movl %eax, %cr0
    ljmpl $24, $({page} + trampoline_64 - trampoline_start)

    .code64
trampoline_64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %ebx, %ebx
    xorl %ebp, %ebp
    movq {stack}(%rbx), %rsp
    movq {argument}(%rbx), %rdi
    jmpq *{entry}(%rbx)

    .balign 8
trampoline_gdt:
    // The accessed bits are set, so that the processor does not write to this page.
    .quad 0
    .quad 0x00cf9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00209b0000000000
trampoline_gdt_pointer:
    .word trampoline_gdt_pointer - trampoline_gdt - 1
    .long {page} + trampoline_gdt - trampoline_start
    .balign 8
trampoline_values:
    .fill {values}, 1, 0
trampoline_end:
    .text
    "#,
    page = const PAGE,
    msr_efer = const 0xc000_0080_u32,
    cr0 = const offset_of!(Values, cr0),
    cr3 = const offset_of!(Values, cr3),
    cr4 = const offset_of!(Values, cr4),
    efer = const offset_of!(Values, efer),
    stack = const offset_of!(Values, stack),
    argument = const offset_of!(Values, argument),
    entry = const offset_of!(Values, entry),
    values = const size_of::<Values>(),
    options(att_syntax)
);
