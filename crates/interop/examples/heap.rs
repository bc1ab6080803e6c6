//! A kernel with `Box` and `Vec`: a global allocator on Quire.
//!
//! `cargo build -p quire-interop --example heap --target x86_64-unknown-none`
#![cfg_attr(target_os = "none", no_std, no_main)]

extern crate alloc;

mod support;

use alloc::boxed::Box;
use alloc::vec::Vec;

use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};
use quire_interop::Heap;

use support::{MACHINE, Machine};

/// Where physical address 0 stands in the direct map of this kernel.
const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;

// Programs under an operating system keep their own allocator.
#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: Heap<Machine> = Heap::new();

/// Runs `kernel` with `Box` and `Vec`; `None` when memory is out. The page allocator must live for ever, since the heap does:
/// it lives on the stack of a function that does not return.
fn run(memory: &[MemoryRange], kernel: impl FnOnce()) -> Option<core::convert::Infallible> {
    MACHINE.set_offset(DIRECT_MAP);
    // SAFETY: invariant 1: the memory is handed over here, and nowhere else.
    let pages = unsafe { PageAllocator::new(&MACHINE, memory, AllocatorConfig::default()) }.ok()?;
    // SAFETY: invariant 1: this function does not return from here on, so the allocator stays where it is for ever.
    let forever: &'static PageAllocator<'static, Machine> = unsafe { &*core::ptr::from_ref(&pages) };
    HEAP.init(forever).ok()?;
    kernel();
    loop {
        core::hint::spin_loop();
    }
}

/// What the kernel does.
fn kernel() {
    let boxed = Box::new(42);
    let squares: Vec<u32> = (0..1000).map(|number| number * *boxed).collect();
    assert_eq!(squares.len(), 1000);
}

/// The boot loader starts the kernel here. How it finds the memory is shown by the examples with the names of boot loaders.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let map = quire_interop::MemoryMap::new();
    let _ = run(map.ranges(), kernel);
    support::halt()
}

/// Under an operating system there is no memory to take over.
#[cfg(not(target_os = "none"))]
fn main() {
    kernel();
    assert!(run(&[], kernel).is_none());
}
