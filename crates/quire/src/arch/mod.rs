//! What differs between processors; only here is an architecture chosen.
//!
//! Every other module speaks of levels, entries, protections, kernels and features, and names no processor. A
//! second architecture must provide what this module re-exports; see `docs/second-architecture.md`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as chosen;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "Quire runs on x86-64 only; docs/second-architecture.md says what another architecture must provide"
);

mod access;
mod protection;

pub use access::Access;
#[cfg(feature = "published")]
pub(crate) use chosen::WINDOW_BASE;
pub use chosen::{
    Caches, ClearKernel, CopyKernel, CpuFeatures, Entry, EntryFlags, Feature, Level, PageFault, PagingMode,
    ProcessorState, ReadyClear, ReadyCopy, expect_changes, expect_reads, store_fence,
};
pub use protection::Protection;
