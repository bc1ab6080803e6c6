//! A kernel for x86-64 on QEMU whose memory manager is Quire. `docs/kernel.md` explains it.
//!
//! It runs a Linux program from the initial RAM disk and ends QEMU with the program's status. Read it in this order:
//! `main.rs`, `boot`, `memory`, `task`, `program`, `syscall`, `files`, `cpu`.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod cpu;
mod device;
mod errno;
mod files;
mod init;
mod memory;
mod panic;
mod program;
mod sync;
mod syscall;
mod task;
mod time;

use quire::addr::PhysAddr;
use quire::cpu::CpuId;

use boot::start_info::BootInfo;
use cpu::registers::Registers;
use memory::layout::DIRECT_MAP;
use memory::{kernel_half, manager, ranges};
use task::process::Process;
use task::task::UserContext;
use task::{Task, sched};

/// The boot code calls this on the kernel's stack, with the first GiB mapped at 0 too.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: PhysAddr) -> ! {
    let info = leave_boot_tables(start_info);
    start_processor(CpuId(0));
    start_memory(info);
    start_tasks();
    sched::idle_loop(x86_64::instructions::interrupts::enable_and_hlt)
}

/// Switches to the kernel's own page tables.
fn leave_boot_tables(start_info: PhysAddr) -> BootInfo {
    cpu::features::enable();
    // SAFETY: the loader passed the address; the boot tables map the first GiB, where its structures lie, at 0.
    let early = unsafe { BootInfo::read(start_info, 0) };
    kernel_half::install(boot::tables::build(early.usable_memory()));
    // SAFETY: the structures lie in low memory, which the direct map contains.
    unsafe { BootInfo::read(start_info, DIRECT_MAP as usize) }
}

/// Prepares the running processor for traps and programs, and turns interrupts on.
fn start_processor(id: CpuId) {
    cpu::area::install(id);
    cpu::segments::load();
    cpu::traps::mask_legacy_interrupts();
    cpu::traps::load();
    cpu::user_mode::enable();
    x86_64::instructions::interrupts::enable();
}

/// Hands all free memory to Quire. The kernel can allocate from here on.
fn start_memory(info: BootInfo) {
    // SAFETY: `manageable` leaves out all that the kernel uses by itself.
    unsafe { manager::start(&ranges::manageable(info)) };
    if let Some(initrd) = info.initrd() {
        // SAFETY: `manageable` leaves it out.
        unsafe { files::initramfs::install(initrd) };
    }
    boot::command::remember(info);
}

/// Makes the running code the idle task, and starts the first other one.
fn start_tasks() {
    let kernel = Process::kernel();
    sched::become_idle_task(Task::idle(kernel.clone()));
    let context = UserContext::new(Registers::default());
    let supervisor = Task::new(kernel, 0, context, None, init::supervise).expect("memory for the first task");
    sched::start(supervisor);
}
