//! Runs a program in ring 3 until it needs the kernel.

use core::arch::asm;

use quire::addr::VirtAddr;
use quire::arch::PageFault;
use quire::vm::Access;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr2;
use x86_64::registers::model_specific::{LStar, SFMask};
use x86_64::registers::rflags::RFlags;

use super::interrupts::FIRST;
use super::registers::{Registers, SYSTEM_CALL};
use super::stubs::{USER_CODE, USER_DATA, enter_user, system_call_stub};
use super::traps::PAGE_FAULT;

/// Why a program stopped.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// A system call, whose number and arguments stand in the registers.
    SystemCall,
    /// An access that its page table does not allow.
    PageFault(VirtAddr, Access),
    /// Another trap, by its vector.
    Trap(u64),
    /// An interrupt, which is served already.
    Interrupt,
}

/// Prepares this CPU for programs.
pub fn enable() {
    LStar::write(x86_64::VirtAddr::from_ptr(&raw const system_call_stub));
    SFMask::write(
        RFlags::NESTED_TASK
            | RFlags::INTERRUPT_FLAG
            | RFlags::DIRECTION_FLAG
            | RFlags::TRAP_FLAG
            | RFlags::ALIGNMENT_CHECK,
    );
}

/// A program's registers as it starts.
pub fn initial_registers(entry: VirtAddr, stack: VirtAddr) -> Registers {
    Registers {
        rip: entry.0,
        cs: u64::from(USER_CODE),
        rflags: RFlags::INTERRUPT_FLAG.bits(),
        rsp: stack.0,
        ss: u64::from(USER_DATA),
        ..Registers::default()
    }
}

/// Runs the program until it stops. Interrupts are off before and on afterwards.
///
/// # Safety
/// The registers are the running task's: they were made by [`initial_registers`] or stored by the last run, changed
/// only as a program could change its own, and the task was switched in (`CpuArea::set_registers_end`). Its address
/// space is loaded.
pub unsafe fn run(registers: *mut Registers) -> Stop {
    // The program's registers replace all that a call may lose, and four that it keeps.
    // SAFETY: X3: the caller promises that the registers are the running task's.
    unsafe {
        asm!(
            "call {}",
            sym enter_user,
            inout("rdi") registers => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    // The next fault overwrites CR2, so it is read before interrupts are on.
    let fault_address = VirtAddr(Cr2::read_raw());
    // SAFETY: X3: the program does not run any more, so this is the only use of its registers.
    let registers = unsafe { &*registers };
    if registers.vector == PAGE_FAULT {
        // Quire handles a fault with interrupts on, because it may have to interrupt other CPUs.
        interrupts::enable();
        return match PageFault::from_error_code(registers.error) {
            Ok(fault) => Stop::PageFault(fault_address, fault.access),
            Err(_) => Stop::Trap(PAGE_FAULT),
        };
    }
    if (FIRST..SYSTEM_CALL).contains(&registers.vector) {
        super::interrupts::handle(registers.vector);
    }
    interrupts::enable();
    match registers.vector {
        SYSTEM_CALL => Stop::SystemCall,
        vector @ ..FIRST => Stop::Trap(vector),
        _ => Stop::Interrupt,
    }
}
