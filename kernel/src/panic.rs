//! A panic shows where and why, what each CPU was doing, where tasks wait and what memory is in use, and ends the
//! machine.

use core::arch::asm;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};

use x86_64::registers::control::{Cr0, Cr2, Cr3, Cr4};
use x86_64::registers::read_rip;

use crate::cpu::{area, stop};
use crate::device::exit::{Outcome, exit};
use crate::device::serial::log;
use crate::memory::{layout, manager};
use crate::task::table;

/// The CPU that panicked first.
static OWNER: AtomicU32 = AtomicU32::new(u32::MAX);
/// The stages of a panic, so that one in a stage goes on with the next.
static STAGE: AtomicU32 = AtomicU32::new(0);

/// Frames of a backtrace, at most.
const FRAMES: usize = 64;
/// Tasks that wait, at most.
const WAITING_TASKS: usize = 32;
/// A frame's caller is not further up the stack than this.
const LARGEST_FRAME: u64 = 64 << 10;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    x86_64::instructions::interrupts::disable();
    let cpu = if area::is_installed() { area::cpu_id().0 } else { 0 };
    let owner = OWNER.compare_exchange(u32::MAX, cpu, Ordering::AcqRel, Ordering::Acquire);
    if owner.is_err_and(|owner| owner != cpu) {
        stop::wait_to_be_stopped();
    }
    loop {
        match STAGE.fetch_add(1, Ordering::AcqRel) {
            0 => show_cause(info),
            1 => stop::stop_others(|cpu, [rip, rsp, rbp]| {
                log!("CPU {}: rip {rip:#x} rsp {rsp:#x}", cpu.0);
                if rip != 0 {
                    backtrace(rip, rbp);
                }
            }),
            2 => table::each_waiting(WAITING_TASKS, |task, rip, rbp| {
                log!("task {} of process {} waits", task.id(), task.process.id);
                backtrace(rip, rbp);
            }),
            3 => manager::show_memory(),
            _ => exit(Outcome::KernelFailed),
        }
    }
}

fn show_cause(info: &PanicInfo<'_>) {
    let (rsp, rbp): (u64, u64);
    // SAFETY: X7: the instructions read two registers.
    unsafe {
        asm!("mov {}, rsp", "mov {}, rbp", out(reg) rsp, out(reg) rbp, options(nomem, nostack, preserves_flags));
    }
    let rip = read_rip().as_u64();
    log!("panic on CPU {}", OWNER.load(Ordering::Relaxed));
    log!("{info}");
    // Of the other registers a trap tells in its message. In a panic the compiler has used them since.
    log!("rip {rip:#x} rsp {rsp:#x} rbp {rbp:#x}");
    log!("cr2 {:#x} cr3 {:#x}", Cr2::read_raw(), Cr3::read().0.start_address());
    log!("cr0 {:?} cr4 {:?}", Cr0::read(), Cr4::read());
    backtrace(rip, rbp);
}

/// Prints the return addresses above a frame, the innermost first. `rip` is an address in the frame's function.
fn backtrace(rip: u64, mut rbp: u64) {
    log!("#0 {rip:#x}");
    for number in 1..FRAMES {
        if !rbp.is_multiple_of(8)
            || !(layout::STACKS.contains(&rbp) || layout::data_and_stack().contains(&rbp))
        {
            return;
        }
        let frame = core::ptr::with_exposed_provenance::<[u64; 2]>(rbp as usize);
        // SAFETY: X5: the address is on a stack. If it is not mapped, the panic goes on with its next stage.
        let [caller, return_address] = unsafe { frame.read_volatile() };
        if !layout::text().contains(&return_address) {
            return;
        }
        log!("#{number} {return_address:#x}");
        // A trap may have come from another stack.
        let same_stack = layout::STACKS.contains(&rbp) == layout::STACKS.contains(&caller);
        if same_stack && (caller <= rbp || caller - rbp > LARGEST_FRAME) {
            return;
        }
        rbp = caller;
    }
}
