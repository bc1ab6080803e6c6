//! The conventions of the ecosystem on a hosted machine.

// Has most of the library for the hosted machine, compiled.
use oracle as _;

mod boot;
mod events;
mod heap;
mod mapper;
mod pools;
mod proc;
mod shootdown;
mod traps;
mod user_memory;

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};

const BYTES: u64 = 32 << 20;

/// Does something on a machine with a page allocator for all of its memory, both of which live for ever, as a kernel's do.
/// Afterwards all memory must be back.
fn with_pages(cpus: usize, work: impl FnOnce(&'static Hosted, &'static PageAllocator<'static, Hosted>)) {
    let machine: &'static Hosted =
        Box::leak(Box::new(HostedConfig::new(BYTES).with_cpus(cpus).build().unwrap()));
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        let pages = hosted::raw::page_allocator(machine, &[memory], AllocatorConfig::default()).unwrap();
        let pages: &'static PageAllocator<'static, Hosted> = Box::leak(Box::new(pages));
        let before = free_frames(pages);
        work(machine, pages);
        assert_eq!(free_frames(pages), before, "all memory is back");
        assert_eq!(pages.validate(), Ok(()));
    });
}

/// Free frames when no list keeps any, and no block is split for one.
fn free_frames(pages: &PageAllocator<'_, Hosted>) -> u64 {
    pages.lists().drain_all();
    let info = pages.memory_info();
    info.free + info.cached
}
