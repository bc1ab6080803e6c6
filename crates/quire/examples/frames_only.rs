//! Only the page allocator, on the smallest machine: one CPU, 4 MiB of memory, no interrupts, no page tables.
//!
//! Runs on the host (`cargo run -p quire-mm --features bare --example frames_only`) and builds without an operating system
//! (`--target x86_64-unknown-none`).
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::cell::UnsafeCell;
use core::sync::atomic::{Ordering, fence};

use quire::addr::{Frame, FrameRange, Order, PhysAddr};
use quire::cpu::{CpuId, CpuSet};
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use quire::platform::{Context, FramePlatform, TouchHint};

const BYTES: usize = 4 << 20;

/// What a boot loader would leave to the kernel; here a static of its size. Physical address 0 is its first byte.
#[repr(align(0x20_0000))]
struct Memory(UnsafeCell<[u8; BYTES]>);

// SAFETY: nothing but the allocator and the owners of its folios reaches the bytes, and they exclude one another
// (invariant 1).
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; BYTES]));

/// The machine. It has no state, so `&Machine` costs nothing.
struct Machine;

// SAFETY: one CPU runs one task to its end, so a pinned task stays where it is, and its own fence is every CPU's. The
// direct map is a static, which is there for ever, and which nothing but the allocator uses (invariant 1).
unsafe impl FramePlatform for Machine {
    fn pin(&self) -> CpuId {
        CpuId(0)
    }

    fn unpin(&self) {}

    fn context(&self) -> Context {
        Context::Task
    }

    fn cpu_count(&self) -> usize {
        1
    }

    fn fence_cpus(&self, _targets: &CpuSet) {
        fence(Ordering::SeqCst);
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        MEMORY.0.get().cast::<u8>().wrapping_add(addr.0 as usize)
    }
}

fn run() {
    let memory =
        MemoryRange { frames: FrameRange::new(Frame(0), BYTES as u64 / FRAME_SIZE), node: 0, zeroed: true };
    // SAFETY: invariant 1: nothing else uses these 4 MiB.
    let pages = unsafe { PageAllocator::new(&Machine, &[memory], AllocatorConfig::default()) };
    let pages = pages.expect("4 MiB suffice");

    // 64 KiB in a row, which are the caller's alone until they are freed.
    let mut buffer = pages.alloc(Gfp::KERNEL, Order::new(4).expect("a valid order")).expect("memory is free");
    pages.frames().clear(&mut buffer, TouchHint::Soon);
    pages.free(buffer).expect("nothing else refers to the buffer");

    let info = pages.memory_info();
    assert_eq!(info.free + info.cached + info.metadata, info.total, "all memory is accounted for");
}

#[cfg(not(target_os = "none"))]
fn main() {
    run();
}

/// What a boot loader jumps to. A kernel has set up a stack before.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    run();
    halt()
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    halt()
}

#[cfg(target_os = "none")]
fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
