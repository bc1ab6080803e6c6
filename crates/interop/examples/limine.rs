//! A kernel that Limine starts: it takes the memory over and allocates a folio.
//!
//! `cargo build -p quire-interop --example limine --features limine --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

mod support;

use limine::BaseRevision;
use limine::request::{HhdmRequest, MemoryMapRequest};
use quire::addr::Order;
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator};

use support::MACHINE;

// Limine finds its requests in the kernel's image by their numbers. A kernel's linker script keeps these in one section.
#[used]
static BASE_REVISION: BaseRevision = BaseRevision::new();
#[used]
static MEMORY_MAP: MemoryMapRequest = MemoryMapRequest::new();
#[used]
static DIRECT_MAP: HhdmRequest = HhdmRequest::new();

/// What the kernel does; `None` when the boot loader has not answered, or memory is out.
fn run() -> Option<u64> {
    MACHINE.set_offset(DIRECT_MAP.get_response()?.offset());
    let entries = MEMORY_MAP.get_response()?.entries();
    let map = quire_interop::limine::memory_map(entries);
    let later = quire_interop::limine::reclaimable(entries);
    let config = AllocatorConfig::default();
    // SAFETY: invariant 1: nothing else uses what the boot loader says is free. What it gives up later is added once its
    // data is not needed any more.
    let pages = unsafe { PageAllocator::with_later(&MACHINE, map.ranges(), later.ranges(), config) }.ok()?;
    let folio = pages.alloc(Gfp::KERNEL, Order::BLOCK).ok()?;
    pages.free(folio).ok()?;

    // Here a kernel switches to page tables and a stack of its own. Then what the boot loader used is free.
    for blocks in later.whole_blocks() {
        // SAFETY: invariant 1: nothing uses the boot loader's memory any more.
        unsafe { pages.add_memory(blocks, false) }.ok()?;
    }
    Some(pages.memory_info().free)
}

/// Limine starts the kernel here.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let _free = run();
    support::halt()
}

/// Under an operating system no boot loader answers.
#[cfg(not(target_os = "none"))]
fn main() {
    assert!(BASE_REVISION.is_supported() || run().is_none());
}
