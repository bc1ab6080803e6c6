//! What stands in frames: zeroes and copies, by the machine's policy.
//!
//! The safe methods borrow the folio that they write to. The others name frames, which page tables, the page cache or a
//! pool own: their callers answer for them.

use crate::addr::{Frame, FrameRange, Order};
use crate::clear::{Clearer, Extent};
use crate::error::{AllocError, Cancelled};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::owned::Folio;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::platform::{FramePlatform, TouchHint};

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// How this machine clears and copies.
    #[inline]
    pub fn clearer(&self) -> &Clearer {
        &self.clearer
    }

    /// Fills a folio with zeroes: at most [`crate::limits::CLEAR_STRETCH_BYTES`].
    #[inline]
    pub fn clear(&self, folio: &mut Folio, hint: TouchHint) {
        self.expect_own(folio);
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably.
        unsafe { self.clear_frames(folio.frames(), hint) };
    }

    /// Fills an extent of a folio with zeroes, however long, with reschedule points; gives up when the task is dying.
    ///
    /// Precondition: as for [`FramePlatform::reschedule_point`], when there is more than a stretch.
    ///
    /// # Errors
    /// [`Cancelled`]: the frames must not be seen before they are cleared anew.
    ///
    /// # Panics
    /// When the extent reaches beyond the folio.
    pub fn clear_extent(&self, folio: &mut Folio, extent: &Extent) -> Result<(), Cancelled> {
        self.expect_own(folio);
        assert!(is_within(extent.frames, folio.frames()), "{extent:?} reaches beyond {folio:?}");
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably, and the extent is a part of it.
        unsafe { self.clear_frames_in_stretches(extent) }
    }

    /// Copies frames, whatever they belong to, onto a folio that is as long at least: at most
    /// [`crate::limits::CLEAR_STRETCH_BYTES`]. What is stored to them meanwhile may be copied or not.
    ///
    /// # Panics
    /// When the folio has fewer frames.
    #[inline]
    pub fn copy(&self, from: FrameRange, to: &mut Folio, hint: TouchHint) {
        self.expect_own(to);
        assert!(from.count <= to.order().frames(), "{from:?} is longer than {to:?}");
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably, and it is as long as the source.
        unsafe { self.copy_frames(from, to.frame(), hint) };
    }

    /// Copies a run, however long, onto a folio, as [`Self::clear_extent`] clears one.
    ///
    /// # Errors
    /// [`Cancelled`].
    ///
    /// # Panics
    /// As [`Self::copy`].
    pub fn copy_extent(&self, from: FrameRange, to: &mut Folio, hint: TouchHint) -> Result<(), Cancelled> {
        self.expect_own(to);
        assert!(from.count <= to.order().frames(), "{from:?} is longer than {to:?}");
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably, and it is as long as the source.
        unsafe { self.copy_frames_in_stretches(from, to.frame(), hint) }
    }

    /// Allocates a frame that is zero and will be used at once.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    #[inline]
    pub fn alloc_zero_page(&self, gfp: Gfp) -> Result<Folio, AllocError> {
        let (mut folio, contents) = self.alloc_maybe_zeroed(gfp, Order::FRAME)?;
        if contents == Contents::Unknown {
            self.clear(&mut folio, TouchHint::Soon);
        }
        Ok(folio)
    }

    /// [`Self::clear`] for frames by number.
    ///
    /// # Safety
    /// The caller owns the frames (invariant 1), which lie in one range of memory.
    #[inline]
    pub unsafe fn clear_frames(&self, frames: FrameRange, hint: TouchHint) {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.clear(self.platform, frames, hint) };
    }

    /// [`Self::clear_extent`] for frames by number.
    ///
    /// # Errors
    /// [`Cancelled`].
    ///
    /// # Safety
    /// As for [`Self::clear_frames`].
    pub unsafe fn clear_frames_in_stretches(&self, extent: &Extent) -> Result<(), Cancelled> {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.clear_extent(self.platform, extent, || self.platform.is_dying()) }
    }

    /// [`Self::copy`] onto frames by number, from `to` on. They do not overlap.
    ///
    /// # Safety
    /// The caller owns the frames that are written to (invariant 1). Both runs lie in one range of memory each.
    #[inline]
    pub unsafe fn copy_frames(&self, from: FrameRange, to: Frame, hint: TouchHint) {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.copy(self.platform, from, to, hint) };
    }

    /// [`Self::copy_extent`] onto frames by number, from `to` on. They do not overlap.
    ///
    /// # Errors
    /// [`Cancelled`].
    ///
    /// # Safety
    /// As for [`Self::copy_frames`].
    pub unsafe fn copy_frames_in_stretches(
        &self,
        from: FrameRange,
        to: Frame,
        hint: TouchHint,
    ) -> Result<(), Cancelled> {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.copy_extent(self.platform, from, to, hint, || self.platform.is_dying()) }
    }
}

/// Whether a run is a part of another.
fn is_within(part: FrameRange, whole: FrameRange) -> bool {
    part.start >= whole.start && part.end() <= whole.end()
}
