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
mod idle;
mod init;
mod ipc;
mod memory;
mod observe;
mod panic;
mod program;
mod selftest;
mod service;
mod sync;
mod syscall;
mod task;
mod time;
mod userfault;

use quire::addr::PhysAddr;
use quire::cpu::CpuId;
use x86_64::instructions::interrupts;

use boot::start_info::BootInfo;
use boot::{command, five_levels};
use cpu::apic;
use cpu::registers::Registers;
use cpu::topology::Topology;
use device::exit::exit;
use memory::layout::DIRECT_MAP;
use memory::{kernel_half, manager, ranges};
use task::process::Process;
use task::thread::UserContext;
use task::{Task, sched};
use time::Starting;

/// The boot code calls this on the kernel's stack, with the first GiB mapped at 0 too.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: PhysAddr) -> ! {
    let info = leave_boot_tables(start_info);
    command::remember(info);
    let clocks = start_processor(info);
    start_memory(info);
    clocks.finish();
    let check = selftest::wanted();
    cpu::start::start_others(info);
    if check {
        exit(selftest::run());
    }
    idle::become_idle();
    start_supervisor();
    idle::run()
}

/// Switches to the kernel's own page tables. Not inlined, as what follows: its locals would stay on the boot
/// stack while the memory manager starts.
#[inline(never)]
fn leave_boot_tables(start_info: PhysAddr) -> BootInfo {
    cpu::features::enable();
    // Locks count for the CPU that takes them.
    cpu::area::install(CpuId(0));
    // SAFETY: X1: the loader passed the address; the boot tables map the first GiB, where its structures lie,
    // at 0.
    let early = unsafe { BootInfo::read(start_info, 0) };
    if five_levels::wanted(early.command_line()) && !five_levels::are_on() {
        // SAFETY: X1: the boot tables are loaded, and only the control registers have changed.
        unsafe { five_levels::enter_again(start_info) };
    }
    kernel_half::install(boot::tables::build(early.usable_memory()));
    // SAFETY: X1, X5: the structures lie in low memory, which the direct map contains.
    unsafe { BootInfo::read(start_info, DIRECT_MAP as usize) }
}

/// Prepares the processor for traps and programs, finds the others, and turns interrupts on. The clocks are measured while
/// the caller starts the memory manager.
#[inline(never)]
fn start_processor(info: BootInfo) -> Starting {
    cpu::start::prepare(CpuId(0));
    cpu::traps::mask_legacy_interrupts();
    let mut topology = Topology::new(apic::id_by_cpuid());
    if let Some(rsdp) = info.rsdp() {
        // SAFETY: X1: the loader says that the tables are there.
        unsafe { boot::acpi::read(rsdp, &mut topology) };
    }
    if let Some(most) = command::option("cpus").and_then(|most| most.parse().ok()) {
        topology.limit_cpus(most);
    }
    cpu::area::set_count(topology.apic_ids().len());
    apic::map(topology.local_apic);
    cpu::topology::install(topology);
    apic::enable();
    let clocks = time::start();
    interrupts::enable();
    clocks
}

/// Hands all free memory to Quire. The kernel can allocate from here on.
#[inline(never)]
fn start_memory(info: BootInfo) {
    // SAFETY: invariant 1: `manageable` leaves out all that the kernel uses by itself.
    unsafe { manager::start(&ranges::manageable(info)) };
    boot::tables::hand_over(kernel_half::root());
    if let Some(initrd) = info.initrd() {
        // SAFETY: invariant 1: `manageable` leaves it out, so Quire was not given it.
        unsafe { files::initramfs::install(initrd) };
    }
}

/// Starts the first task.
#[inline(never)]
fn start_supervisor() {
    files::tty::connect();
    device::disk::start();
    let context = UserContext::new(Registers::default());
    let task = Task::new(Process::kernel(), 0, context, None, init::supervise);
    sched::start(task.expect("memory for the first task"));
}
