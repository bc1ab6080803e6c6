//! Turns frame numbers into owned values, and checks owned values that come back.

use crate::addr::{Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::owned::{Folio, Folios, FrameRun, Owner};
use crate::platform::FramePlatform;

impl<P: FramePlatform> Frames<'_, P> {
    /// The folio of a number that [`Folio::into_raw`] gave.
    ///
    /// # Safety
    /// This allocator handed the folio out with this order, or a split left it with this order. The caller
    /// owns it: no other value does, no leaf maps it, and nothing else refers to it by number (invariant 1).
    #[inline]
    pub unsafe fn folio_from_raw(&self, frame: Frame, order: Order) -> Folio {
        self.folio(frame, order)
    }

    /// The run of numbers that [`FrameRun::into_raw`] gave.
    ///
    /// # Safety
    /// As for [`Self::folio_from_raw`], for all of its folios.
    #[inline]
    pub unsafe fn run_from_raw(&self, frames: FrameRange) -> FrameRun {
        self.run(frames)
    }

    /// The folios of numbers that [`Folio::into_raw`] or [`Folios::into_raw`] gave.
    ///
    /// # Safety
    /// As for [`Self::folio_from_raw`], for each of them; no number stands there twice.
    #[inline]
    pub unsafe fn folios_from_raw<'a>(&self, order: Order, frames: &'a [Frame]) -> Folios<'a> {
        self.folios(order, frames)
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn folio(&self, frame: Frame, order: Order) -> Folio {
        Folio::new(frame, order, self.owner())
    }

    #[inline]
    pub(in crate::page_alloc) fn run(&self, frames: FrameRange) -> FrameRun {
        FrameRun::new(frames, self.owner())
    }

    #[inline]
    pub(in crate::page_alloc) fn folios<'a>(&self, order: Order, frames: &'a [Frame]) -> Folios<'a> {
        Folios::new(frames, order, self.owner())
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn take_back(&self, folio: Folio) -> Result<(Frame, Order), FreeError> {
        self.check_owner(folio.owner)?;
        let order = folio.order();
        Ok((folio.into_raw(), order))
    }

    pub(in crate::page_alloc) fn take_back_run(&self, run: FrameRun) -> Result<FrameRange, FreeError> {
        self.check_owner(run.owner)?;
        Ok(run.into_raw())
    }

    /// Refuses, in debug builds, a value of another allocator.
    #[inline(always)]
    pub(in crate::page_alloc) fn check_owner(&self, owner: Owner) -> Result<(), FreeError> {
        if owner == self.owner() { Ok(()) } else { Err(FreeError::Foreign) }
    }

    #[inline(always)]
    pub(in crate::page_alloc) fn expect_own(&self, folio: &Folio) {
        debug_assert!(folio.owner == self.owner(), "{folio:?} belongs to another allocator");
    }

    #[inline(always)]
    fn owner(&self) -> Owner {
        Owner {
            #[cfg(debug_assertions)]
            memmap: self.memmap.address(),
        }
    }
}
