//! A kernel that GRUB or another Multiboot2 loader starts: it takes the memory over and allocates a folio.
//!
//! Such a loader starts kernels in protected mode. The assembly that a kernel needs before it, which enables long mode with
//! memory mapped at its physical addresses, calls `kernel_main`.
//!
//! `cargo build -p quire-interop --example multiboot2 --features multiboot2 --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

mod support;

use multiboot2::{BootInformation, BootInformationHeader, MAGIC};
use quire::addr::{Order, PhysAddr};
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator};

use support::MACHINE;

/// What the kernel does; `None` when the loader is another or gave no memory map, or memory is out.
fn run(boot: &BootInformation<'_>) -> Option<u64> {
    MACHINE.set_offset(0);
    let mut map = quire_interop::multiboot2::memory_map(boot, 0)?;
    // Physical address 0 would be a null pointer in this direct map, and other CPUs start in the first megabyte.
    map.reserve(PhysAddr(0), 1 << 20);
    // SAFETY: invariant 1: nothing else uses what the boot loader says is free.
    let pages = unsafe { PageAllocator::new(&MACHINE, map.ranges(), AllocatorConfig::default()) }.ok()?;
    let folio = pages.alloc(Gfp::KERNEL, Order::BLOCK).ok()?;
    pages.free(folio).ok()?;
    Some(pages.memory_info().free)
}

/// What the boot loader left for the kernel; `None` where it is none of Multiboot2.
///
/// # Safety
/// The two are what the boot loader left in `eax` and `ebx`, and the structure is still as it left it.
unsafe fn boot_information(
    magic: u32,
    start: *const BootInformationHeader,
) -> Option<BootInformation<'static>> {
    if magic != MAGIC {
        return None;
    }
    // SAFETY: invariant 1: the loader made the structure for the kernel, by this function's contract.
    unsafe { BootInformation::load(start) }.ok()
}

/// The first code in long mode calls this, with what the boot loader left in `eax` and `ebx`.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn kernel_main(magic: u32, start: *const BootInformationHeader) -> ! {
    // SAFETY: invariant 1: the caller passes what the boot loader left, and nothing has run since.
    let _free = unsafe { boot_information(magic, start) }.and_then(|boot| run(&boot));
    support::halt()
}

/// Under an operating system there is no boot loader.
#[cfg(not(target_os = "none"))]
fn main() {
    // SAFETY: invariant 1: a wrong number is refused before the pointer is looked at.
    let boot = unsafe { boot_information(0, core::ptr::null()) };
    assert!(boot.and_then(|boot| run(&boot)).is_none());
}
