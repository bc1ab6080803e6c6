//! What differs between processors. Everything above speaks of levels, entries, protections, and of kernels and features by name only.

pub mod x86_64;

pub use x86_64::{
    Caches, ClearKernel, CopyKernel, CpuFeatures, Entry, EntryFlags, Feature, Level, PagingMode, Protection,
    ReadyClear, ReadyCopy, expect_changes, expect_reads, store_fence,
};
