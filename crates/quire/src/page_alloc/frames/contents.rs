//! Clears and copies frames, as the machine's policy says.
//!
//! Safe methods borrow the folio that they write to. The others name frames that page tables,
//! the page cache or a pool own, and rely on their callers.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, FrameRange, Order, PhysAddr};
use crate::clear::{Clearer, Extent};
use crate::error::Cancelled;
use crate::limits::FRAME_SIZE;
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::owned::Folio;
use crate::platform::{FramePlatform, TouchHint};

impl<P: FramePlatform> Frames<'_, P> {
    /// How this machine clears and copies.
    #[inline]
    pub fn clearer(&self) -> &Clearer {
        &self.clearer
    }

    /// Zeroes a folio of at most [`crate::limits::CLEAR_STRETCH_BYTES`].
    #[inline]
    pub fn clear(&self, folio: &mut Folio, hint: TouchHint) {
        self.expect_own(folio);
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably.
        unsafe { self.clear_frames(folio.frames(), hint) };
    }

    /// As [`Self::clear`], for a folio of one frame.
    #[inline(always)]
    pub(crate) fn clear_page(&self, folio: &mut Folio, hint: TouchHint) {
        debug_assert_eq!(folio.order(), Order::FRAME);
        self.expect_own(folio);
        // SAFETY: invariant 1: the caller owns the folio, which is borrowed mutably.
        unsafe { self.clear_frames(FrameRange::new(folio.frame(), 1), hint) };
    }

    /// Zeroes an extent of a folio, however long, with reschedule points; gives up when the task is dying.
    ///
    /// Precondition: as for [`FramePlatform::reschedule_point`], when the extent is longer than a stretch.
    ///
    /// # Errors
    /// [`Cancelled`]: the frames must not be seen before they are cleared anew.
    ///
    /// # Panics
    /// When the extent reaches beyond the folio.
    pub fn clear_extent(&self, folio: &mut Folio, extent: &Extent) -> Result<(), Cancelled> {
        self.expect_own(folio);
        assert!(is_within(extent.frames, folio.frames()), "{extent:?} reaches beyond {folio:?}");
        // SAFETY: invariant 1: the caller owns the folio, borrowed mutably; the extent is a part of it.
        unsafe { self.clear_frames_in_stretches(extent) }
    }

    /// Copies a folio of at most [`crate::limits::CLEAR_STRETCH_BYTES`] onto another that is at least as long.
    ///
    /// # Panics
    /// When the target has fewer frames.
    #[inline]
    pub fn copy(&self, from: &Folio, to: &mut Folio, hint: TouchHint) {
        self.expect_room(from, to);
        // SAFETY: invariant 1: the caller owns both folios, so they are memory and do not overlap. The target is
        // borrowed mutably, and no shorter than the source.
        unsafe { self.copy_frames(from.frames(), to.frame(), hint) };
    }

    /// Copies a folio, however long, onto another, as [`Self::clear_extent`] clears one.
    ///
    /// # Errors
    /// [`Cancelled`].
    ///
    /// # Panics
    /// As [`Self::copy`].
    pub fn copy_extent(&self, from: &Folio, to: &mut Folio, hint: TouchHint) -> Result<(), Cancelled> {
        self.expect_room(from, to);
        // SAFETY: invariant 1: as for `copy`, the caller owns both folios, and the target is no shorter.
        unsafe { self.copy_frames_in_stretches(from.frames(), to.frame(), hint) }
    }

    fn expect_room(&self, from: &Folio, to: &Folio) {
        self.expect_own(from);
        self.expect_own(to);
        assert!(from.order() <= to.order(), "{from:?} is longer than {to:?}");
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
        unsafe { self.clear_frames_until(extent, || self.platform.is_dying()) }
    }

    /// As [`Self::clear_frames_in_stretches`], until `stop` says so instead of until the task is to be killed.
    ///
    /// # Errors
    /// [`Cancelled`].
    ///
    /// # Safety
    /// As for [`Self::clear_frames`].
    pub(in crate::page_alloc) unsafe fn clear_frames_until(
        &self,
        extent: &Extent,
        stop: impl FnMut() -> bool,
    ) -> Result<(), Cancelled> {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.clear_extent(self.platform, extent, stop) }
    }

    /// [`Self::copy`] for frames by number, onto those from `to` on. Stores to the source meanwhile may be copied
    /// or not.
    ///
    /// # Safety
    /// The caller owns the frames written to (invariant 1). Both runs lie in one range of memory each. They are
    /// the same, or do not overlap.
    #[inline]
    pub unsafe fn copy_frames(&self, from: FrameRange, to: Frame, hint: TouchHint) {
        // SAFETY: invariant 1, by this function's contract.
        unsafe { self.clearer.copy(self.platform, from, to, hint) };
    }

    /// [`Self::copy_extent`] for frames by number, onto those from `to` on.
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

    /// Zeroes memory of the allocator's own.
    ///
    /// # Safety
    /// The bytes lie in frames that the allocator owns as metadata, and nothing else refers to them (M4).
    pub(in crate::page_alloc) unsafe fn zero(&self, at: PhysAddr, bytes: usize) {
        // SAFETY: M4, by this function's contract.
        unsafe { self.platform.direct_map(at).write_bytes(0, bytes) };
    }

    /// The first word that is not zero, of frames that are not written to meanwhile.
    #[cold]
    pub(in crate::page_alloc) fn first_nonzero(&self, frames: FrameRange) -> Option<PhysAddr> {
        (0..frames.count).map(|at| frames.start.add(at)).find_map(|frame| {
            let at = first_nonzero_word(self.lines_of(frame))?;
            Some(PhysAddr(frame.addr().0 + (at * size_of::<u64>()) as u64))
        })
    }

    /// Whether a frame in use is all zero. The caller must notice stores that come meanwhile.
    pub(crate) fn is_zero(&self, frame: Frame) -> bool {
        first_nonzero_word(self.lines_of(frame)).is_none()
    }

    fn lines_of(&self, frame: Frame) -> &Lines {
        // SAFETY: M5: the frame is memory, all of which is words, and is read by atomics alone.
        unsafe { &*self.platform.direct_map(frame.addr()).cast() }
    }
}

/// A frame's cache lines.
type Lines = [[AtomicU64; WORDS_OF_A_LINE]; FRAME_SIZE as usize / 64];
const WORDS_OF_A_LINE: usize = 64 / size_of::<u64>();

/// Not generic, so that unoptimised callers need not compile it themselves.
fn first_nonzero_word(lines: &Lines) -> Option<usize> {
    let is_other = |line: &[AtomicU64; 8]| line.iter().fold(0, |all, word| all | load(word)) != 0;
    let line = lines.iter().position(is_other)?;
    let word = lines[line].iter().position(|word| load(word) != 0);
    Some(line * WORDS_OF_A_LINE + word.unwrap_or_default())
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn is_within(part: FrameRange, whole: FrameRange) -> bool {
    part.start >= whole.start && part.end() <= whole.end()
}
