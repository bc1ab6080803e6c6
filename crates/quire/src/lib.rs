//! Quire: a memory manager for kernels, hypervisors and unikernels.
//!
//! A machine is a value that implements [`platform::Platform`]. A [`manager::MemoryManager`] takes over its memory and
//! makes address spaces ([`vm::Mm`]), whose verbs have the semantics of Linux. The parts can be had alone:
//! [`page_alloc::PageAllocator`] for frames, [`pgtable::PageTables`] with [`tlb::MmuGather`] for page tables,
//! [`slab::Cache`] for small objects. No `alloc`, no globals; every failure is a value of [`error`].
//!
//! Modules stand in strict layers, and a module uses only those before it: `limits addr error rank cpu arch platform sync
//! stats clear memmap page_alloc slab tlb vmemmap pgtable filemap hugetlb vm manager`. `docs/architecture.md` says what each owns, and a test
//! keeps it so.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod addr;
pub mod arch;
mod atomic;
pub mod avl;
pub mod clear;
pub mod cpu;
pub mod error;
pub mod filemap;
mod flags;
pub mod hugetlb;
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
#[cfg(feature = "published")]
pub mod vmemmap;

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// So are the programs in `examples/`, each as a module, since rustdoc compiles such tests together.
#[cfg(doctest)]
mod examples {
    macro_rules! run {
        ($($name:ident)*) => {$(
            #[doc = concat!(
                "```\nmod example {\n", include_str!(concat!("../examples/", stringify!($name), ".rs")),
                "pub fn run() { main().unwrap() }\n}\nfn main() { example::run() }\n```"
            )]
            mod $name {}
        )*};
    }

    run!(address_space huge_page_pool post_copy smallest_machine);
}
