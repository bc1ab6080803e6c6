//! Per-CPU lists: the common path, their slow path, and their drains.
//!
//! [`Lists`] keeps folios that each CPU allocates and frees without a lock, and that come from the store.

pub(super) mod common_path;
pub(super) mod drain;
pub(super) mod events;
#[cfg(feature = "published")]
pub(super) mod guarded;
pub(super) mod level;
pub(super) mod list;
pub(super) mod list_access;
pub(super) mod lists;
pub(super) mod parked;
pub(super) mod rest;

use crate::memmap::BootSlice;
use crate::page_alloc::frames::Frames;
use crate::page_alloc::pcp::level::CpuLists;
use crate::page_alloc::store::Store;
use crate::platform::FramePlatform;

/// The lists of all CPUs of one machine.
pub struct Lists<'p, P: FramePlatform> {
    pub(in crate::page_alloc) store: Store<'p, P>,
    pub(in crate::page_alloc) cpus: BootSlice<CpuLists>,
}

impl<'p, P: FramePlatform> Lists<'p, P> {
    #[inline(always)]
    pub(in crate::page_alloc) fn frames(&self) -> &Frames<'p, P> {
        &self.store.frames
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn platform(&self) -> &'p P {
        self.frames().platform
    }
}
