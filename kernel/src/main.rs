//! A kernel for x86-64 on QEMU whose memory manager is Quire. `docs/kernel.md` explains it.
#![no_std]
#![no_main]

mod boot;
mod cpu;
mod device;
mod memory;
mod panic;

use quire::addr::PhysAddr;
use x86_64::PhysAddr as RootAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;

use boot::start_info::BootInfo;
use device::exit::{Outcome, exit};
use memory::layout::DIRECT_MAP;

/// The boot code calls this on the kernel's stack, with the first GiB mapped at 0 too.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: PhysAddr) -> ! {
    // SAFETY: the loader passed the address; the boot tables map the first GiB, where its structures lie, at 0.
    let early = unsafe { BootInfo::read(start_info, 0) };
    cpu::features::enable();
    let root = boot::tables::build(early.usable_memory());
    // SAFETY: the new tables map the image that runs and the stack at the same addresses.
    unsafe { Cr3::write(PhysFrame::containing_address(RootAddr::new(root.addr().0)), Cr3Flags::empty()) };
    // SAFETY: the structures lie in the first 2 MiB, which the direct map contains.
    let info = unsafe { BootInfo::read(start_info, DIRECT_MAP as usize) };
    log!("command line: {}", info.command_line());
    exit(Outcome::Exited(0))
}
