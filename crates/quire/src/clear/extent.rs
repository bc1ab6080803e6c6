//! Clears extents.

use super::Clearer;
use crate::addr::{Frame, FrameRange};
use crate::arch::{ClearKernel, ReadyClear};
use crate::error::Cancelled;
use crate::limits::{
    CLEAR_CACHED_BYTES, CLEAR_NEAR_BYTES, CLEAR_NEAR_SHARE, CLEAR_OWN_BYTES, CLEAR_STRETCH_BYTES, FRAME_SIZE,
};
use crate::platform::{FramePlatform, TouchHint};

const NEAR_FRAMES: u64 = CLEAR_NEAR_BYTES / FRAME_SIZE;
/// Frames cleared without a reschedule point, at most.
const STRETCH_FRAMES: u64 = CLEAR_STRETCH_BYTES / FRAME_SIZE;

/// Frames to clear, and what the caller knows of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The frames, which lie in one range of the machine.
    pub frames: FrameRange,
    /// Bytes of all memory that is cleared together, of which the frames may be a part. It selects the
    /// kernel, unless the frames are so few that they [stay cached](CLEAR_CACHED_BYTES) in any case.
    pub whole: u64,
    /// When the memory is used.
    pub hint: TouchHint,
    /// The frame that a task waits for.
    pub near: Option<Frame>,
}

impl Extent {
    /// An extent by itself.
    #[inline]
    pub const fn new(frames: FrameRange, hint: TouchHint) -> Self {
        Self { frames, whole: frames.count * FRAME_SIZE, hint, near: None }
    }

    /// The same extent as a part of a larger one of `bytes` bytes.
    #[must_use]
    pub const fn part_of(self, bytes: u64) -> Self {
        Self { whole: bytes, ..self }
    }

    /// A part of the extent.
    #[must_use]
    pub(crate) fn within(self, frames: FrameRange) -> Self {
        Self { frames, near: self.near.filter(|&near| frames.contains(near)), ..self }
    }

    /// The same extent with a task that waits for one of its frames. The frame's neighbourhood is cleared
    /// last and stays cached, or all of the extent does.
    #[inline]
    #[must_use]
    pub const fn near(self, frame: Frame) -> Self {
        Self { near: Some(frame), ..self }
    }

    /// The bytes that select the kernel.
    fn chosen_by(&self) -> u64 {
        let own = self.frames.count * FRAME_SIZE;
        if own <= CLEAR_CACHED_BYTES { own } else { self.whole.max(own) }
    }

    /// The frames cleared last: the aligned neighbourhood of the frame that a task waits for, if any.
    pub fn neighbourhood(&self) -> FrameRange {
        let (start, end) = (self.frames.start, self.frames.end());
        match self.near {
            Some(near) if self.frames.contains(near) => {
                // It is smaller in a small extent: a program that uses all of the extent would pay for stores
                // through the caches. An extent that stays cached in any case is its own neighbourhood.
                let cached = self.frames.count * FRAME_SIZE <= CLEAR_CACHED_BYTES;
                let share = if cached { NEAR_FRAMES } else { self.frames.count / CLEAR_NEAR_SHARE };
                let share = share.clamp(1, NEAR_FRAMES);
                let count = 1 << share.ilog2();
                let first = Frame(near.0 - near.0 % count);
                let (first, last) = (first.max(start), first.add(count).min(end));
                FrameRange::new(first, last.0 - first.0)
            }
            _ => FrameRange::new(end, 0),
        }
    }
}

impl Clearer {
    /// Clears at most [`CLEAR_STRETCH_BYTES`] of frames, so that no reschedule point is needed.
    ///
    /// # Safety
    /// The caller owns the frames (invariant 1), which lie in one range of memory.
    #[inline]
    pub unsafe fn clear<P: FramePlatform>(&self, platform: &P, frames: FrameRange, hint: TouchHint) {
        debug_assert!(frames.count <= STRETCH_FRAMES, "longer ones need reschedule points: clear_extent");
        let busy = self.busy(frames.count * FRAME_SIZE);
        let kernel = self.clear.get(hint, busy.cpus(), frames.count * FRAME_SIZE);
        // SAFETY: invariant 1, by this function's contract.
        let streamed = unsafe { self.clear_by(platform, frames, kernel) };
        if streamed {
            platform.store_fence();
        }
    }

    /// Clears an extent of any length: first the frames far from the one that a task waits for, its
    /// neighbourhood last. An extent that fits a core's own caches and should stay there is cleared in one
    /// run. Calls [`FramePlatform::reschedule_point`] once per stretch at least, and asks `cancel` there.
    ///
    /// Precondition: if the extent exceeds a stretch, as for [`FramePlatform::reschedule_point`].
    ///
    /// # Errors
    /// [`Cancelled`]; an unknown part of the frames is cleared then.
    ///
    /// # Safety
    /// As for [`Self::clear`].
    pub unsafe fn clear_extent<P: FramePlatform>(
        &self,
        platform: &P,
        extent: &Extent,
        cancel: impl FnMut() -> bool,
    ) -> Result<(), Cancelled> {
        let (busy, bytes) = (self.busy(extent.whole), extent.chosen_by());
        let kernel = || self.clear.get(extent.hint, busy.cpus(), bytes);
        // All of it stays in the core's own caches, so one run of stores is faster than three.
        let own = bytes <= CLEAR_OWN_BYTES && !kernel().is_streaming();
        let near = if own { FrameRange::new(extent.frames.end(), 0) } else { extent.neighbourhood() };
        let before = FrameRange::new(extent.frames.start, near.start.0 - extent.frames.start.0);
        let after = FrameRange::new(near.end(), extent.frames.end().0 - near.end().0);
        let near_kernel = self.clear.get(TouchHint::Soon, 1, CLEAR_NEAR_BYTES);
        let mut stretches = self.stretches(platform, cancel);
        for part in [before, after] {
            // SAFETY: invariant 1, by this function's contract: the frames are a part of the extent.
            stretches.over(part, |frames| unsafe { self.clear_by(platform, frames, kernel()) })?;
        }
        // SAFETY: invariant 1, by this function's contract: the neighbourhood is a part of the extent.
        stretches.over(near, |frames| unsafe { self.clear_by(platform, frames, near_kernel) })?;
        stretches.fence();
        Ok(())
    }

    /// Clears an extent in stretches by this kernel instead of the policy's: for measurements.
    ///
    /// # Safety
    /// As for [`Self::clear`].
    pub(super) unsafe fn clear_all_by<P: FramePlatform>(
        &self,
        platform: &P,
        frames: FrameRange,
        kernel: ClearKernel,
    ) {
        let mut stretches = self.stretches(platform, || false);
        // SAFETY: invariant 1, by this function's contract: the frames are a part of the extent.
        let done = stretches.over(frames, |frames| unsafe { self.clear_by(platform, frames, kernel) });
        debug_assert_eq!(done, Ok(()), "it is never cancelled");
        stretches.fence();
    }

    /// Iterates in stretches of the current policy.
    pub(super) fn stretches<'a, P, C>(&self, platform: &'a P, cancel: C) -> Stretches<'a, P, C> {
        Stretches { platform, cancel, most: self.stretch().frames(), since: 0, streamed: false }
    }

    /// Clears one stretch by one kernel, or by one of its kind without vectors where the platform grants
    /// none. Returns whether its stores pass the caches and need a fence, which the caller makes: it waits for
    /// all stores, so the pieces of an extent share one.
    ///
    /// # Safety
    /// As for [`Self::clear`].
    #[inline]
    unsafe fn clear_by<P: FramePlatform>(
        &self,
        platform: &P,
        frames: FrameRange,
        kernel: ClearKernel,
    ) -> bool {
        if !kernel.uses_vectors() {
            // SAFETY: invariant 1, by this function's contract; the kernel uses no vector registers.
            unsafe { platform.clear(frames, self.ready(kernel)) };
        } else if platform.vectors_begin() {
            // SAFETY: invariant 1, by this function's contract; vectors may be used until `vectors_end`.
            unsafe { platform.clear(frames, self.ready(kernel)) };
            platform.vectors_end();
        } else {
            let features = self.features.without_vectors();
            let plain = if kernel.is_streaming() {
                ClearKernel::streaming(features)
            } else {
                ClearKernel::cached(features)
            };
            // SAFETY: invariant 1, by this function's contract; the kernel uses no vector registers.
            unsafe { platform.clear(frames, self.ready(plain)) };
        }
        kernel.is_streaming()
    }

    /// The policy was checked, so the machine can run the kernel. If not, the plain one does as well.
    #[inline]
    fn ready(&self, kernel: ClearKernel) -> ReadyClear {
        kernel.on(self.features).unwrap_or(ReadyClear::PLAIN).unfenced()
    }
}

/// Iterates over frames a stretch at a time, and makes the store fences.
///
/// # Where is a fence?
///
/// Stores past the caches wait in buffers of their CPU, and neither the locks nor the plain stores by which
/// the memory is published later wait for them. So a fence on the *same* CPU comes first:
///
/// - After the last stretch, since what follows publishes the memory: a leaf, a mark that a block is zero, a
///   free.
/// - Before each reschedule point, since the task may continue on another CPU, where a fence orders nothing
///   of what this one did. No contract says that a reschedule point orders such stores, and where no other
///   task is ready it is a function that returns.
/// - Before a cancelled clear returns, since its frames go to other tasks.
///
/// None is needed where no store passed the caches since the last one: x86 orders the stores of kernels
/// through the caches by itself (`rep stos` too, as a whole, before later stores), and a fence waits for all
/// of a stretch to arrive. Nor where vectors end or an interrupt preempts the task between two points: an
/// interrupt drains the buffers (Intel SDM volume 3, section 13.3.1; AMD64 manual, volume 2, section 7.4.2).
///
/// Copies are fenced by their kernels, each stretch by itself.
pub(super) struct Stretches<'a, P, C> {
    platform: &'a P,
    cancel: C,
    /// Frames of a stretch.
    most: u64,
    /// Frames since the last reschedule point.
    since: u64,
    /// Whether stores since the last fence passed the caches.
    streamed: bool,
}

impl<P: FramePlatform, C: FnMut() -> bool> Stretches<'_, P, C> {
    /// Calls `work` with all frames, in parts such that no more than a stretch follows a reschedule point. It
    /// returns whether its stores need a fence.
    pub(super) fn over(
        &mut self,
        frames: FrameRange,
        mut work: impl FnMut(FrameRange) -> bool,
    ) -> Result<(), Cancelled> {
        let mut at = frames.start;
        while at < frames.end() {
            let count = (frames.end().0 - at.0).min(self.most);
            if self.since + count > self.most {
                // The task may continue on another CPU, or another CPU may read its frames.
                self.fence();
                if (self.cancel)() {
                    return Err(Cancelled);
                }
                self.platform.reschedule_point();
                self.since = 0;
            }
            self.streamed |= work(FrameRange::new(at, count));
            self.since += count;
            at = at.add(count);
        }
        Ok(())
    }

    /// Makes a store fence if stores need one.
    pub(super) fn fence(&mut self) {
        if core::mem::take(&mut self.streamed) {
            self.platform.store_fence();
        }
    }
}
