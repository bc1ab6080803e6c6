//! Quire: a memory manager for kernels, hypervisors and unikernels.
//!
//! Modules stand in strict layers; a module uses only those above it in this list.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod addr;
pub mod arch;
mod atomic;
pub mod cpu;
pub mod error;
pub mod filemap;
pub mod limits;
pub mod manager;
pub mod memmap;
pub mod page_alloc;
pub mod pgtable;
pub mod platform;
pub mod rank;
pub mod slab;
pub mod stats;
pub mod sync;
pub mod tlb;
pub mod vm;
