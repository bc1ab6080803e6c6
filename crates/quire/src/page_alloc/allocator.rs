//! [`PageAllocator`] itself.

use core::sync::atomic::AtomicU64;

use crate::addr::{Frame, FrameRange, Order};
use crate::error::{AllocError, FreeError};
use crate::memmap::{Descriptor, MemMap};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::owned::{Folio, Folios};
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::page_alloc::store::Store;
use crate::platform::FramePlatform;
use crate::stats::Stat;

/// Allocates and frees the page frames of one machine.
///
/// It is made of values that each have one duty, and know only those below them:
///
/// | value | duty |
/// |---|---|
/// | [`MapCounts`] | how many leaves map each frame, and what is free when none does |
/// | [`Requests`] | allocates and frees folios, by zone and node |
/// | [`Lists`] | per-CPU lists of free folios |
/// | [`Store`] | free memory, in pools of whole blocks and shards of blocks in small pieces |
/// | [`Frames`] | records, states, descriptors and contents of frames |
///
/// This type itself does what takes several of them: splitting folios, ranges of blocks in a row, adding and
/// removing memory, checking the whole.
pub struct PageAllocator<'p, P: FramePlatform> {
    pub(in crate::page_alloc) counts: MapCounts<'p, P>,
    /// Frames of the ranges that the machine was given.
    pub(in crate::page_alloc) present: AtomicU64,
    /// The sum of the zones' `min` marks that was asked for; [`BY_RULE`] if none was.
    pub(in crate::page_alloc) min_free: AtomicU64,
    /// Frames that hold the manager's tables, or are too few at a range's edge to be used.
    pub(in crate::page_alloc) reserved: u64,
    /// Frames that were allocated for tables of the manager. They are never freed.
    pub(in crate::page_alloc) tables: AtomicU64,
}

impl<'p, P: FramePlatform> PageAllocator<'p, P> {
    /// The map counts.
    #[inline(always)]
    pub fn counts(&self) -> &MapCounts<'p, P> {
        &self.counts
    }

    /// Requests, and the nodes that they choose among.
    #[inline(always)]
    pub fn requests(&self) -> &Requests<'p, P> {
        &self.counts.requests
    }

    /// The per-CPU lists.
    #[inline(always)]
    pub fn lists(&self) -> &Lists<'p, P> {
        &self.counts.requests.lists
    }

    /// The free memory.
    #[inline(always)]
    pub fn store(&self) -> &Store<'p, P> {
        self.counts.store()
    }

    /// The frames.
    #[inline(always)]
    pub fn frames(&self) -> &Frames<'p, P> {
        self.counts.frames()
    }

    /// The machine.
    #[inline(always)]
    pub fn platform(&self) -> &'p P {
        self.frames().platform
    }

    /// The memory map.
    #[inline(always)]
    pub fn memmap(&self) -> &MemMap {
        &self.frames().memmap
    }

    /// Counts an event on the running CPU.
    #[inline]
    pub fn count(&self, stat: Stat, events: u64) {
        self.frames().count(stat, events);
    }

    /// Changes a counted amount on the running CPU.
    #[inline]
    pub fn change(&self, stat: Stat, by: i64) {
        self.frames().change(stat, by);
    }

    /// Allocates a folio ([`Requests::alloc`]).
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline(always)]
    pub fn alloc(&self, gfp: Gfp, order: Order) -> Result<Folio, AllocError> {
        self.requests().alloc(gfp, order)
    }

    /// The descriptor of a frame that the caller has just allocated ([`Requests::describe`]).
    ///
    /// # Errors
    /// [`AllocError`]; the frame is still the caller's.
    #[inline]
    pub fn describe(&self, frame: Frame) -> Result<&Descriptor, AllocError> {
        self.requests().describe(frame)
    }

    /// Sets the origin of a folio ([`Requests::set_origin`]).
    ///
    /// # Errors
    /// [`AllocError`]; the folio is still the caller's.
    #[inline]
    pub(crate) fn set_origin(&self, folio: FrameRange, origin: Origin) -> Result<(), AllocError> {
        self.requests().set_origin(folio, origin)
    }

    /// Frees a folio ([`Requests::free`]).
    ///
    /// # Errors
    /// [`FreeError`].
    #[inline(always)]
    pub fn free(&self, folio: Folio) -> Result<(), FreeError> {
        self.requests().free(folio)
    }

    /// Allocates a folio, and says whether it is known to be zero ([`Requests::alloc_maybe_zeroed`]).
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline(always)]
    pub fn alloc_maybe_zeroed(&self, gfp: Gfp, order: Order) -> Result<(Folio, Contents), AllocError> {
        self.requests().alloc_maybe_zeroed(gfp, order)
    }

    /// Allocates many folios of one order ([`Requests::alloc_bulk`]).
    #[inline]
    pub fn alloc_bulk<'a>(&self, gfp: Gfp, order: Order, out: &'a mut [Frame]) -> Folios<'a> {
        self.requests().alloc_bulk(gfp, order, out)
    }

    /// Frees many folios ([`Requests::free_bulk`]).
    ///
    /// # Errors
    /// [`FreeError`], and how many folios were freed before.
    #[inline]
    pub fn free_bulk(&self, folios: Folios<'_>) -> Result<(), (usize, FreeError)> {
        self.requests().free_bulk(folios)
    }
}
