//! A kernel that logs when memory is short or goes bad.
//!
//! `cargo build -p quire-interop --example log --features log --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

mod support;

use log::{Log, Metadata, Record};
use quire::addr::{Order, PhysAddr};
use quire::cpu::{CpuId, CpuSet};
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use quire::platform::{Context, Event, FramePlatform};

use support::MACHINE;

/// Where physical address 0 stands in the direct map of this kernel.
const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// The machine of the other examples, with a log.
struct Logged;

// SAFETY: every method is that machine's, which keeps the contracts (invariant 1), but for the event. The logger neither waits
// nor allocates.
unsafe impl FramePlatform for Logged {
    fn event(&self, event: Event) {
        quire_interop::log::report(event);
    }

    fn pin(&self) -> CpuId {
        MACHINE.pin()
    }

    fn unpin(&self) {
        MACHINE.unpin();
    }

    fn context(&self) -> Context {
        MACHINE.context()
    }

    fn cpu_count(&self) -> usize {
        MACHINE.cpu_count()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        MACHINE.fence_cpus(targets);
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        MACHINE.direct_map(addr)
    }
}

/// A kernel writes to its serial port here.
struct Port;

impl Log for Port {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let _bytes = record.args().as_str().map_or(0, str::len);
    }

    fn flush(&self) {}
}

/// What the kernel does: it asks for more memory than there is, which is logged.
fn run(memory: &[MemoryRange]) -> Option<()> {
    log::set_logger(&Port).ok()?;
    log::set_max_level(log::LevelFilter::Info);
    MACHINE.set_offset(DIRECT_MAP);
    // SAFETY: invariant 1: the memory is handed over here, and nowhere else.
    let pages = unsafe { PageAllocator::new(&Logged, memory, AllocatorConfig::default()) }.ok()?;
    while pages.alloc(Gfp::KERNEL, Order::FRAME).is_ok() {}
    Some(())
}

/// The boot loader starts the kernel here. How it finds the memory is shown by the examples with the names of boot loaders.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let _ = run(quire_interop::MemoryMap::new().ranges());
    support::halt()
}

/// Under an operating system there is no memory to take over.
#[cfg(not(target_os = "none"))]
fn main() {
    assert!(run(&[]).is_none());
}
