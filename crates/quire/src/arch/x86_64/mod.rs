//! x86-64: paging (Intel SDM volume 3A chapter 4, AMD64 APM volume 2 chapter 5), clears, copies, prefetches.

mod clear;
mod copy;
mod entry;
mod features;
mod level;
mod page_fault;
mod prefetch;
mod state;

pub use clear::{ClearKernel, ReadyClear, store_fence};
pub use copy::{CopyKernel, ReadyCopy};
pub use entry::{Entry, EntryFlags};
pub use features::{Caches, CpuFeatures, Feature};
#[cfg(feature = "published")]
pub(crate) use level::WINDOW_BASE;
pub use level::{Level, PagingMode};
pub use page_fault::PageFault;
pub use prefetch::{expect_changes, expect_reads};
pub use state::ProcessorState;

#[cfg(test)]
mod tests;
