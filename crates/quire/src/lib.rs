//! Quire: a memory manager for kernels, hypervisors and unikernels.
//!
//! It manages page frames, page tables and address spaces, with the semantics of Linux. It needs neither
//! `std` nor `alloc`, and has no global state. Every failure is a value of [`error`].
//!
//! # How do I begin?
//!
//! A machine is a value that implements [`platform::Platform`]. A [`manager::MemoryManager`] takes over the
//! machine's memory and creates address spaces ([`vm::Mm`]). Parts can be used on their own:
//!
//! | part | type | what the machine implements |
//! |---|---|---|
//! | frames | [`page_alloc::PageAllocator`] | [`platform::FramePlatform`], six methods |
//! | small objects on frames | [`slab::Cache`] | the same |
//! | page tables | [`pgtable::PageTables`], [`tlb::MmuGather`] | [`platform::TablePlatform`], six more |
//! | everything | [`manager::MemoryManager`] | [`platform::Platform`], the pager |
//!
//! # In which order do the modules depend on each other?
//!
//! A module uses only modules before it, as a test checks: `avl limits addr error rank cpu nodes arch platform
//! sync stats clear memmap page_alloc slab tlb vmemmap pgtable filemap hugetlb vm manager`.
//! `docs/architecture.md` describes each.
//!
//! # Which features are there?
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `published` | off | published designs to compare with: ways to guard per-CPU lists, to count mappings, to unmap memory, and to keep the descriptors of huge pages (the module `vmemmap`). A kernel does not need it |
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
mod meminfo;
pub mod memmap;
pub mod nodes;
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

/// The examples of the READMEs are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod package_readme {}

#[cfg(doctest)]
#[doc = include_str!("../../hosted/README.md")]
mod hosted_readme {}

/// So are the programs in `examples/`, each in a module, since rustdoc compiles such tests together.
#[cfg(doctest)]
mod examples {
    macro_rules! run {
        ($($name:ident)*) => {$(
            #[doc = concat!(
                "```\nmod example {\n", include_str!(concat!("../examples/", stringify!($name), ".rs")),
                "pub fn run_example() -> impl std::process::Termination { main() }\n}\n",
                "fn main() -> impl std::process::Termination { example::run_example() }\n```"
            )]
            mod $name {}
        )*};
    }

    run!(address_space few_verbs frames_only huge_page_pool post_copy smallest_machine);
}
