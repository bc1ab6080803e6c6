//! Descriptors in the block: a page that joins or leaves a pool has none.
#![forbid(unsafe_code)]

use crate::addr::Frame;
use crate::error::AllocError;
use crate::hugetlb::descriptors::state::Gathered;
use crate::hugetlb::resize::give_back;
use crate::hugetlb::{HugePools, HugeSize, PoolInfo};
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;

impl HugePools<'_> {
    /// Whether descriptors of pages that join a pool are saved (`vm.hugetlb_optimize_vmemmap`): always.
    pub fn is_saving(&self) -> bool {
        true
    }

    /// Chooses whether descriptors of pages that join a pool are saved. Returns `false`: there is no choice.
    pub fn set_saving(&self, _saving: bool) -> bool {
        false
    }

    /// Whether a resize gathers all its pages before it adds or frees any.
    pub(in crate::hugetlb) fn gathers(&self) -> bool {
        false
    }

    pub(in crate::hugetlb) fn gather<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _gathered: &mut Gathered,
        _frames: &[Frame],
    ) {
        debug_assert!(!self.gathers());
    }

    pub(in crate::hugetlb) fn add_gathered<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _size: HugeSize,
        _gathered: Gathered,
    ) {
    }

    pub(in crate::hugetlb) fn release_all<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _size: HugeSize,
        _gathered: Gathered,
    ) -> u64 {
        0
    }

    /// Frees pages that have left their pool; returns how many it could not free.
    pub(in crate::hugetlb) fn release<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: &[Frame],
    ) -> u64 {
        give_back(pages, size.order(), frames);
        0
    }

    pub(in crate::hugetlb) fn describe<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _size: HugeSize,
        _frames: impl Iterator<Item = Frame>,
    ) {
    }

    /// Never fails.
    pub(in crate::hugetlb) fn undescribe<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _size: HugeSize,
        _frames: impl Iterator<Item = Frame>,
    ) -> Result<(), AllocError> {
        Ok(())
    }

    pub(in crate::hugetlb) fn thaw<P: Platform>(&self, _pages: &PageAllocator<'_, P>, _frame: Frame) {}

    pub(in crate::hugetlb) fn freeze<P: Platform>(&self, _pages: &PageAllocator<'_, P>, _frame: Frame) {}

    pub(in crate::hugetlb) fn is_described<P: Platform>(
        &self,
        _pages: &PageAllocator<'_, P>,
        _size: HugeSize,
        _frame: Frame,
    ) -> bool {
        true
    }

    pub(in crate::hugetlb) fn leftover(&self, _info: PoolInfo) -> u64 {
        0
    }
}
