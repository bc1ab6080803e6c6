//! A kernel that builds page tables with the crate `x86_64`, in frames of Quire.
//!
//! `cargo build -p quire-interop --example mapper --features x86_64 --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

mod support;

use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use quire_interop::x86_64::Frames;
use x86_64::VirtAddr;
use x86_64::structures::paging::{FrameAllocator, Mapper, Page, PageTableFlags, PhysFrame, Size2MiB};

use support::{MACHINE, Machine};

/// Where physical address 0 stands in the direct map of this kernel.
const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

/// Maps 2 MiB at an address. The kernel's mapper takes the tables that it needs from the same allocator.
fn map_large(
    mapper: &mut impl Mapper<Size2MiB>,
    pages: &PageAllocator<'_, Machine>,
    at: VirtAddr,
) -> Option<PhysFrame<Size2MiB>> {
    let frame = Frames::new(pages, Gfp::USER).allocate_frame()?;
    let page = Page::from_start_address(at).ok()?;
    let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::USER_ACCESSIBLE;
    // SAFETY: invariant 1: the frame was just handed out, so nothing else uses its memory.
    let flush = unsafe { mapper.map_to(page, frame, flags, &mut Frames::new(pages, Gfp::KERNEL)) }.ok()?;
    // Nothing was mapped there before, and the processor remembers no absent entry.
    flush.ignore();
    Some(frame)
}

/// What the kernel does with the page table that the boot loader left.
fn run(memory: &[MemoryRange], mapper: &mut impl Mapper<Size2MiB>) -> Option<PhysFrame<Size2MiB>> {
    MACHINE.set_offset(DIRECT_MAP);
    // SAFETY: invariant 1: the memory is handed over here, and nowhere else.
    let pages = unsafe { PageAllocator::new(&MACHINE, memory, AllocatorConfig::default()) }.ok()?;
    map_large(mapper, &pages, VirtAddr::new(0x4000_0000))
}

/// The boot loader starts the kernel here. How it finds the memory is shown by the examples with the names of boot loaders.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    main();
    support::halt()
}

fn main() {
    use x86_64::structures::paging::{OffsetPageTable, PageTable};

    let mut table = PageTable::new();
    // SAFETY: invariant 1: the table is empty, so the mapper follows no pointer out of it, and there is no memory to map.
    let mut mapper = unsafe { OffsetPageTable::new(&mut table, VirtAddr::new(0)) };
    let map = quire_interop::MemoryMap::new();
    assert!(run(map.ranges(), &mut mapper).is_none());
}
