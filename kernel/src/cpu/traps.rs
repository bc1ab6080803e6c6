//! The interrupt table, and traps that interrupt the kernel itself.

use quire_interop::user_memory::fixup;
use spin::Once;
use x86_64::instructions::port::Port;
use x86_64::registers::control::Cr2;
use x86_64::structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable};
use x86_64::{PrivilegeLevel, VirtAddr};

use super::registers::Registers;
use super::segments::{FATAL_STACK, NMI_STACK};
use super::stubs::{FATAL, STUB_BYTES, VECTORS, trap_stubs};
use super::{area, interrupts, stop};

/// The vector of interrupts that cannot be masked.
const NMI: u64 = 2;
/// The vector of `int3`, which programs may execute: debuggers and sanitizers do.
const BREAKPOINT: usize = 3;
/// The vector of page faults.
pub const PAGE_FAULT: u64 = 14;

type RawTable = [Entry<HandlerFunc>; 256];

static IDT: Once<InterruptDescriptorTable> = Once::new();

/// Loads the interrupt table on the running CPU.
pub fn load() {
    IDT.call_once(|| {
        let mut table: RawTable = [Entry::missing(); 256];
        for (vector, entry) in table.iter_mut().enumerate().take(VECTORS) {
            let stub = (&raw const trap_stubs).addr() + vector * STUB_BYTES;
            // SAFETY: X7: each stub is the entry of its vector; fatal ones have a stack.
            unsafe {
                let options = entry.set_handler_addr(VirtAddr::new(stub as u64));
                if vector == BREAKPOINT {
                    options.set_privilege_level(PrivilegeLevel::Ring3);
                }
                if vector == NMI as usize {
                    options.set_stack_index(NMI_STACK);
                } else if vector < 32 && FATAL >> vector & 1 == 1 {
                    options.set_stack_index(FATAL_STACK);
                }
            }
        }
        // SAFETY: X7: the table is 256 entries of one layout; their handler types exist for the compiler
        // alone.
        unsafe { core::mem::transmute::<RawTable, InterruptDescriptorTable>(table) }
    })
    .load();
}

/// The legacy interrupt controllers would deliver their timer as vector 8, a double fault.
pub fn mask_legacy_interrupts() {
    for data_port in [0x21, 0xa1] {
        // SAFETY: X6: the write masks all lines of one controller.
        unsafe { Port::<u8>::new(data_port).write(0xff) };
    }
}

/// A trap or an interrupt that interrupted the kernel. A page fault while memory of a program is accessed ends that access, whose
/// caller asks Quire to bring the page in (`crate::memory::user`). Every other one is an error of the kernel.
#[unsafe(no_mangle)]
extern "C" fn kernel_trap(registers: &mut Registers) {
    if registers.vector >= interrupts::FIRST {
        return interrupts::handle(registers.vector);
    }
    if FATAL >> registers.vector & 1 == 1 {
        // A program's GS may still be loaded. The kernel does not return to it.
        area::recover();
        if registers.vector == NMI && !stop::is_first_nmi() {
            stop::stop(registers);
        }
    }
    if registers.vector == PAGE_FAULT
        && let Some(rip) = fixup(registers.rip)
    {
        registers.rip = rip;
        return;
    }
    panic!("trap in the kernel, cr2 {:#x}\n{registers}", Cr2::read_raw());
}
