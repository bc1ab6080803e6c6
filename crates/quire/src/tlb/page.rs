//! A single leaf that is replaced or unmapped: counted down without a gather.

use super::RssChange;
use super::marks::{carry, recorded};
use crate::addr::{FrameRange, PageSize};
use crate::arch::{Entry, EntryFlags};
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;

/// A 4 KiB leaf that was taken out of a page table while CPUs may still use it (invariant 2). It cannot be
/// dropped, only counted down after its flush. In debug builds dropping one panics.
#[must_use = "the leaf must be counted down after its flush"]
pub(crate) struct UnmappedPage(Entry);

impl UnmappedPage {
    /// Takes the leaf. Marks a file's page at once, while it still counts as mapped.
    #[inline]
    pub(crate) fn new<P: TablePlatform>(allocator: &PageAllocator<'_, P>, leaf: Entry) -> Self {
        carry(allocator, FrameRange::new(leaf.frame(), 1), PageSize::Size4K, recorded(leaf));
        Self(leaf)
    }

    /// Counts the leaf down, and returns the change of resident memory.
    ///
    /// # Safety
    /// Every CPU that may have used the leaf was flushed since it was taken out (invariant 2).
    #[inline(always)]
    pub(crate) unsafe fn release<P: TablePlatform>(self, allocator: &PageAllocator<'_, P>) -> RssChange {
        let leaf = self.0;
        core::mem::forget(self);
        if !leaf.has(EntryFlags::SPECIAL) {
            // SAFETY: invariants 2 and 5: the leaf was counted, was taken out once, and is flushed.
            unsafe { allocator.counts().unmap_page(leaf.frame()) };
        }
        let mut change = RssChange::default();
        change.count(leaf, PageSize::Size4K, -1);
        change
    }
}

impl Drop for UnmappedPage {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            panic!("taken out and never counted down (invariant 2): {:?}", self.0);
        }
    }
}
