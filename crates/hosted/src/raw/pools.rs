//! Pages of pools by number.
#![allow(unsafe_code)]

use quire::addr::Frame;
use quire::hugetlb::{HugePools, HugeSize};
use quire::page_alloc::PageAllocator;
use quire::platform::Platform;

use super::IsolatedMemory;

/// Pools of huge pages whose pages are numbers.
#[allow(missing_docs)]
pub trait RawPools {
    fn give_raw<P: Platform + IsolatedMemory>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
        reserved: bool,
    );
}

impl RawPools for HugePools<'_> {
    fn give_raw<P: Platform + IsolatedMemory>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
        reserved: bool,
    ) {
        // SAFETY: invariant 1: the test owns the machine's memory.
        unsafe { self.give(pages, size, frame, reserved) };
    }
}
