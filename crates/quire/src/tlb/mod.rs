//! Translation caches: which CPUs run an address space, flushes, and the gather that frees what was unmapped.
//!
//! # The flush contract
//!
//! A frame or table that an entry named is freed, counted down or reused only after a flush of every CPU that
//! may have cached it (invariant 2). The types enforce this: clearing a present entry yields an [`Unmapped`],
//! which can only be given to an [`MmuGather`], which flushes before it looks at it. Page-table pages are
//! *detached* whole, by one exchange of their parent's entry, and read only after the flush: until then
//! hardware may still set accessed and dirty bits in them (invariant 3).
//!
//! Rights that were removed while nothing is freed are flushed through a [`FlushBatch`].
//!
//! A CPU that runs an address space is in its [`MmContext`]. Any other CPU has nothing cached that it would
//! use again, because loading a root makes it fresh. So an address space that no CPU runs is never flushed.
//! Where CPUs keep translations of roots that they leave, a flush takes the right to them away (`kept`).

mod batch;
mod context;
mod drain;
mod gather;
mod kept;
mod marks;
mod page;
mod release;
mod rss;
mod scatter;
mod secondary;
mod shared;
pub(crate) mod sharers;
mod strategy;
mod unmapped;
pub(crate) mod words;

pub use batch::FlushBatch;
pub(crate) use batch::{flush_page, flush_page_here};
pub use context::MmContext;
pub use gather::MmuGather;
pub(crate) use marks::recorded;
pub(crate) use page::UnmappedPage;
pub use rss::RssChange;
pub(crate) use shared::resident;
#[cfg(feature = "published")]
pub use strategy::ZapStrategy;
#[cfg(not(feature = "published"))]
pub(crate) use strategy::ZapStrategy;
pub use unmapped::Unmapped;

#[cfg(test)]
mod tests;
