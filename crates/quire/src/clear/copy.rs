//! Copies frames.

use super::{Busy, Clearer};
use crate::addr::{Frame, FrameRange};
use crate::arch::{CopyKernel, ReadyCopy};
use crate::error::Cancelled;
use crate::limits::{CLEAR_STRETCH_BYTES, FRAME_SIZE};
use crate::platform::{FramePlatform, TouchHint};

/// One CPU that copies several runs, all by the kernel for their total size.
pub struct Copier<'a, P: FramePlatform> {
    clearer: &'a Clearer,
    platform: &'a P,
    kernel: CopyKernel,
    _busy: Busy<'a>,
}

impl<P: FramePlatform> Copier<'_, P> {
    /// Copies at most [`CLEAR_STRETCH_BYTES`] of frames to as many from `to` on. They are the same, or do not
    /// overlap.
    ///
    /// # Safety
    /// The caller owns the frames that are written to (invariant 1). Each run lies in one range of memory.
    #[inline]
    pub unsafe fn copy(&self, from: FrameRange, to: Frame) {
        debug_assert!(from.count * FRAME_SIZE <= CLEAR_STRETCH_BYTES, "longer ones need reschedule points");
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.copy_by(self.platform, from, to, self.kernel) };
    }
}

impl Clearer {
    /// Begins to copy runs of `bytes` bytes in total.
    pub fn copier<'a, P: FramePlatform>(
        &'a self,
        platform: &'a P,
        bytes: u64,
        hint: TouchHint,
    ) -> Copier<'a, P> {
        let busy = self.busy(bytes);
        Copier { clearer: self, platform, kernel: self.copy.get(hint, busy.cpus(), bytes), _busy: busy }
    }

    /// Copies at most [`CLEAR_STRETCH_BYTES`] of frames to as many from `to` on. They are the same, or do not
    /// overlap.
    ///
    /// # Safety
    /// The caller owns the frames that are written to (invariant 1). Each run lies in one range of memory.
    #[inline]
    pub unsafe fn copy<P: FramePlatform>(&self, platform: &P, from: FrameRange, to: Frame, hint: TouchHint) {
        let bytes = from.count * FRAME_SIZE;
        debug_assert!(bytes <= CLEAR_STRETCH_BYTES, "longer ones need reschedule points: copy_extent");
        let busy = self.busy(bytes);
        let kernel = self.copy.get(hint, busy.cpus(), bytes);
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.copy_by(platform, from, to, kernel) };
    }

    /// Copies a run of any length, with a reschedule point after each stretch, where it asks `cancel`.
    ///
    /// Precondition: if the run exceeds a stretch, as for [`FramePlatform::reschedule_point`].
    ///
    /// # Errors
    /// [`Cancelled`]; some frames are copied then.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    pub unsafe fn copy_extent<P: FramePlatform>(
        &self,
        platform: &P,
        from: FrameRange,
        to: Frame,
        hint: TouchHint,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled> {
        let bytes = from.count * FRAME_SIZE;
        let busy = self.busy(bytes);
        self.stretches(platform, cancel).over(from, |frames| {
            let kernel = self.copy.get(hint, busy.cpus(), bytes);
            let to = to.add(frames.start.0 - from.start.0);
            // SAFETY: invariant 1, by this function's contract: the frames are a part of the run.
            unsafe { self.copy_by(platform, frames, to, kernel) };
            false
        })
    }

    /// Copies in stretches by this kernel instead of the policy's: for measurements.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    pub(super) unsafe fn copy_all_by<P: FramePlatform>(
        &self,
        platform: &P,
        from: FrameRange,
        to: Frame,
        kernel: CopyKernel,
    ) {
        let mut stretches = self.stretches(platform, || false);
        let done = stretches.over(from, |frames| {
            let to = to.add(frames.start.0 - from.start.0);
            // SAFETY: invariant 1, by this function's contract: the frames are a part of the run.
            unsafe { self.copy_by(platform, frames, to, kernel) };
            false
        });
        debug_assert_eq!(done, Ok(()), "it is never cancelled");
    }

    /// Copies one stretch by one kernel, or by one without vectors where the platform grants none. A kernel that
    /// streams ends with a fence.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    #[inline]
    unsafe fn copy_by<P: FramePlatform>(
        &self,
        platform: &P,
        from: FrameRange,
        to: Frame,
        kernel: CopyKernel,
    ) {
        if !kernel.uses_vectors() {
            // SAFETY: invariant 1, by this function's contract; the kernel uses no vector registers.
            unsafe { platform.copy(from, to, self.ready_copy(kernel)) };
        } else if platform.vectors_begin() {
            // SAFETY: invariant 1, by this function's contract; vectors may be used until `vectors_end`.
            unsafe { platform.copy(from, to, self.ready_copy(kernel)) };
            platform.vectors_end();
        } else {
            let plain = if kernel.is_streaming() {
                CopyKernel::PLAIN_STREAMING
            } else {
                CopyKernel::cached(self.features.without_vectors())
            };
            // SAFETY: invariant 1, by this function's contract; the kernel uses no vector registers.
            unsafe { platform.copy(from, to, self.ready_copy(plain)) };
        }
    }

    #[inline]
    fn ready_copy(&self, kernel: CopyKernel) -> ReadyCopy {
        kernel.on(self.features).unwrap_or(ReadyCopy::PLAIN)
    }
}
