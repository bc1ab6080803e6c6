//! Map counts: how many leaves map each frame. Page tables count leaves up and down through [`MapCounts`],
//! which gives frames that nothing maps or holds back to the store.

mod blocks;
pub(super) mod counter;
pub(super) mod deferred;
pub(super) mod deferred_list;
pub(super) mod folio;
pub(super) mod group;
pub(super) mod holds;
pub(super) mod large_pieces;
pub(super) mod mapped;
mod merge;
mod page;
#[cfg(feature = "published")]
pub(super) mod published;
pub(super) mod returned;
pub(super) mod slot_frames;
#[cfg(feature = "published")]
mod span;
mod whole_folio;

use crate::page_alloc::frames::Frames;
use crate::page_alloc::mapcount::deferred_list::DeferredSplits;
use crate::page_alloc::request::Requests;
use crate::page_alloc::store::Store;
use crate::platform::FramePlatform;
use crate::sync::{SpinLock, Stack};

/// The map counts of one machine's frames.
pub struct MapCounts<'p, P: FramePlatform> {
    pub(in crate::page_alloc) requests: Requests<'p, P>,
    /// Folios of order 9 and more, parts of which a split would free.
    pub(in crate::page_alloc) deferred: SpinLock<DeferredSplits>,
    /// Lent huge pages that no leaf maps any more.
    pub(in crate::page_alloc) returned_huge: Stack,
}

impl<'p, P: FramePlatform> MapCounts<'p, P> {
    #[inline(always)]
    pub(in crate::page_alloc) fn store(&self) -> &Store<'p, P> {
        self.requests.store()
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn frames(&self) -> &Frames<'p, P> {
        self.requests.frames()
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn platform(&self) -> &'p P {
        self.frames().platform
    }
}
