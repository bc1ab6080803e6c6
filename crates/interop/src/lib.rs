//! Quire in other people's kernels: the conventions of the ecosystem.
//!
//! | feature | what it gives |
//! |---|---|
//! | always | [`MemoryMap`]: usable memory in any order, cut to whole frames, without what is reserved |
//! | always | [`Heap`]: a global allocator on the slab and the page allocator |
//! | always | [`user_memory`]: copies from and to a program's memory, which recover from faults |
//! | always | [`shootdown`]: flushes of other CPUs' translations, by a mailbox for each CPU |
//! | always | [`HugeOptions`]: pools of huge pages that the command line asks for |
//! | always | [`proc`]: `/proc/meminfo`, `smaps`, `pagemap` and the like, as Linux writes them |
//! | `bootloader_api` | `bootloader::memory_map` |
//! | `limine` | `limine::memory_map` |
//! | `multiboot2` | `multiboot2::memory_map` |
//! | `x86_64` | `x86_64::Frames`: that crate's `FrameAllocator` and `FrameDeallocator` |
//! | `log` | `log::report`: rare events as log records |
//!
//! No feature is on by default, and each brings in one crate, which has its name.
//!
//! The start of a kernel that Limine starts; `examples/limine.rs` is the whole of it.
//!
//! ```
//! use limine::request::MemoryMapRequest;
//! use quire::manager::{Config, MemoryManager};
//! use quire::platform::Platform;
//!
//! fn take_over<'p, P: Platform>(platform: &'p P, request: &MemoryMapRequest) -> Option<MemoryManager<'p, P>> {
//!     let map = quire_interop::limine::memory_map(request.get_response()?.entries());
//!     // SAFETY: nothing else uses what the boot loader says is free.
//!     unsafe { MemoryManager::new(platform, map.ranges(), &Config::default()) }.ok()
//! }
//! ```
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod atomic;
#[cfg(feature = "bootloader_api")]
pub mod bootloader;
#[allow(unsafe_code)]
mod heap;
mod huge_options;
#[cfg(feature = "limine")]
pub mod limine;
#[cfg(feature = "log")]
pub mod log;
mod memory_map;
#[cfg(feature = "multiboot2")]
pub mod multiboot2;
pub mod proc;
#[allow(unsafe_code)]
pub mod shootdown;
#[allow(unsafe_code)]
pub mod user_memory;
#[cfg(feature = "x86_64")]
#[allow(unsafe_code)]
pub mod x86_64;

pub use heap::Heap;
pub use huge_options::{HugeOptions, Shortage, WantedPages};
pub use memory_map::MemoryMap;
