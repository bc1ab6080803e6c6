//! What stands in frames: zeroes and copies, by the machine's policy.
#![forbid(unsafe_code)]

use super::PageAllocator;
use super::gfp::{Contents, Gfp};
use crate::addr::{Frame, FrameRange, Order};
use crate::clear::{Clearer, Extent};
use crate::error::{AllocError, Cancelled};
use crate::platform::{FramePlatform, TouchHint};

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// How this machine clears and copies.
    #[inline]
    pub fn clearer(&self) -> &Clearer {
        &self.clearer
    }

    /// Fills frames of the caller's with zeroes: at most [`crate::limits::CLEAR_STRETCH_BYTES`].
    #[inline]
    pub fn clear(&self, frames: FrameRange, hint: TouchHint) {
        self.clearer.clear(self.platform, frames, hint);
    }

    /// Takes a frame and sees to it that it is zero: it will be used at once.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    #[inline]
    pub fn alloc_zero_page(&self, gfp: Gfp) -> Result<Frame, AllocError> {
        let (frame, contents) = self.alloc_known(gfp, Order::FRAME)?;
        if contents == Contents::Unknown {
            self.clear(FrameRange::folio(frame, Order::FRAME), TouchHint::Soon);
        }
        Ok(frame)
    }

    /// Fills an extent of the caller's with zeroes, however long, with reschedule points; gives up when the task is dying.
    ///
    /// Precondition: as for [`FramePlatform::reschedule_point`], when there is more than a stretch.
    ///
    /// # Errors
    /// [`Cancelled`]: nobody may see the frames before they are cleared anew.
    pub fn clear_extent(&self, extent: &Extent) -> Result<(), Cancelled> {
        self.clearer.clear_extent(self.platform, extent, || self.platform.is_dying())
    }

    /// Copies frames onto as many others of the caller's, as many at most. They do not overlap.
    #[inline]
    pub fn copy(&self, from: FrameRange, to: Frame, hint: TouchHint) {
        self.clearer.copy(self.platform, from, to, hint);
    }

    /// Copies a run, however long, as [`Self::clear_extent`] clears one.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub fn copy_extent(&self, from: FrameRange, to: Frame, hint: TouchHint) -> Result<(), Cancelled> {
        self.clearer.copy_extent(self.platform, from, to, hint, || self.platform.is_dying())
    }
}
