//! A kernel that the crate `bootloader` starts: it takes the memory over and allocates a folio.
//!
//! `cargo build -p quire-interop --example bootloader --features bootloader_api --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

mod support;

use bootloader_api::config::{BootloaderConfig, Mapping};
use bootloader_api::info::MemoryRegion;
use quire::addr::{Order, PhysAddr};
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator};

use support::MACHINE;

/// Asks the boot loader for a direct map.
pub static CONFIG: BootloaderConfig = {
    let mut config = BootloaderConfig::new_default();
    config.mappings.physical_memory = Some(Mapping::Dynamic);
    config
};

/// What the kernel does; `None` when memory is out.
fn run(regions: &[MemoryRegion], offset: u64) -> Option<u64> {
    MACHINE.set_offset(offset);
    let mut map = quire_interop::bootloader::memory_map(regions);
    // Firmware has its own use for the first megabyte, and other CPUs start there.
    map.reserve(PhysAddr(0), 1 << 20);
    // SAFETY: invariant 1: nothing else uses what the boot loader says is free.
    let pages = unsafe { PageAllocator::new(&MACHINE, map.ranges(), AllocatorConfig::default()) }.ok()?;
    let folio = pages.alloc(Gfp::KERNEL, Order::BLOCK).ok()?;
    pages.free(folio).ok()?;
    Some(pages.memory_info().free)
}

#[cfg(target_os = "none")]
mod kernel {
    use bootloader_api::BootInfo;

    bootloader_api::entry_point!(start, config = &super::CONFIG);

    /// The boot loader starts the kernel here.
    fn start(boot: &'static mut BootInfo) -> ! {
        if let Some(offset) = boot.physical_memory_offset.into_option() {
            let _free = super::run(&boot.memory_regions, offset);
        }
        super::support::halt()
    }
}

/// Under an operating system there is no memory to take over.
#[cfg(not(target_os = "none"))]
fn main() {
    assert!(run(&[], 0).is_none());
}
