//! Requests for frames: [`Requests`] chooses zones and nodes, and tries the CPU's lists, then the store.

pub(super) mod alloc;
pub(super) mod bulk;
pub(super) mod gfp;
pub(super) mod placement;
pub(super) mod tables;
pub(super) mod zeroed;
pub(super) mod zone_order;

use crate::page_alloc::frames::Frames;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::request::placement::Placement;
use crate::page_alloc::store::Store;
use crate::platform::FramePlatform;

/// Allocates and frees folios: one or many, by zone and node.
pub struct Requests<'p, P: FramePlatform> {
    pub(in crate::page_alloc) lists: Lists<'p, P>,
    pub(in crate::page_alloc) placement: Placement,
}

impl<'p, P: FramePlatform> Requests<'p, P> {
    #[inline(always)]
    pub(in crate::page_alloc) fn store(&self) -> &Store<'p, P> {
        &self.lists.store
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn frames(&self) -> &Frames<'p, P> {
        &self.lists.store.frames
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn platform(&self) -> &'p P {
        self.frames().platform
    }
}
