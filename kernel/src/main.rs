//! A kernel for x86-64 on QEMU whose memory manager is Quire. `docs/kernel.md` explains it.
//!
//! It runs one static Linux program from the initial RAM disk and ends QEMU with the program's status. Read it in
//! this order: `main.rs`, `boot`, `memory`, `program`, `syscall`, `cpu`.
#![no_std]
#![no_main]

extern crate alloc;

mod boot;
mod cpu;
mod device;
mod errno;
mod files;
mod memory;
mod panic;
mod program;
mod syscall;

use alloc::vec::Vec;

use quire::addr::PhysAddr;

use boot::start_info::BootInfo;
use device::exit::{Outcome, exit};
use device::serial::log;
use memory::layout::DIRECT_MAP;
use memory::manager::{self, Balance};
use memory::{kernel_half, ranges};
use program::process::Process;

/// What runs if the command line is empty.
const DEFAULT_PROGRAM: &str = "/bin/busybox echo hello";

/// The boot code calls this on the kernel's stack, with the first GiB mapped at 0 too.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: PhysAddr) -> ! {
    let info = leave_boot_tables(start_info);
    start_processor();
    start_memory(info);
    exit(run_program(info.command_line()))
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

/// Prepares the processor for traps and programs.
fn start_processor() {
    cpu::segments::load();
    cpu::traps::load();
    cpu::user_mode::enable();
}

/// Hands all free memory to Quire. The kernel can allocate from here on.
fn start_memory(info: BootInfo) {
    // SAFETY: `manageable` leaves out all that the kernel uses by itself.
    unsafe { manager::start(&ranges::manageable(info)) };
    if let Some(initrd) = info.initrd() {
        // SAFETY: `manageable` leaves it out.
        unsafe { files::initramfs::install(initrd) };
    }
}

/// Runs the program that the command line names, and checks that nothing of it is left.
fn run_program(command_line: &str) -> Outcome {
    // `quire boot` puts the kernel's options first.
    let command_line = command_line.split_once("-- ").map_or(command_line, |(_, words)| words);
    let line = if command_line.trim().is_empty() { DEFAULT_PROGRAM } else { command_line };
    let before = Balance::now();
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let outcome = match Process::load(arguments[0], &arguments) {
        Ok(process) => process.run(),
        Err(errno) => {
            log!("cannot run {}: {errno}", arguments[0]);
            Outcome::NotStarted
        }
    };
    drop(arguments);
    if manager::check(before) { outcome } else { Outcome::KernelFailed }
}
