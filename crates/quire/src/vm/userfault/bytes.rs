//! The bytes of frames that an answer fills before they are mapped.

use core::mem;

use crate::addr::{Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::limits::{FRAME_SIZE, POPULATE_FAULTS};
use crate::page_alloc::{Contents, Gfp};
use crate::platform::Platform;
use crate::vm::space::shared::MmShared;

/// The bytes of one page.
pub(in crate::vm) type PageBytes = [u8; FRAME_SIZE as usize];

/// A frame that was just allocated, and that no other code knows. Dropping it frees it.
pub(super) struct OwnFrame<'a, 'p, P: Platform> {
    memory: &'a MmShared<'p, P>,
    frame: Frame,
    contents: Contents,
}

impl<'a, 'p, P: Platform> OwnFrame<'a, 'p, P> {
    pub(super) fn filled(
        memory: &'a MmShared<'p, P>,
        fill: impl FnOnce(&mut PageBytes),
    ) -> Result<Self, AllocError> {
        let frame = memory.pages().alloc(Gfp::USER, Order::FRAME)?.into_raw();
        let own = Self { memory, frame, contents: Contents::Unknown };
        let mut fill = Some(fill);
        // SAFETY: invariant 1: the frame was just allocated, and only this value names it.
        unsafe {
            fill_frames(memory.platform(), FrameRange::folio(own.frame, Order::FRAME), &mut |_, bytes| {
                if let Some(fill) = fill.take() {
                    fill(bytes);
                }
            });
        }
        Ok(own)
    }

    pub(super) fn zeroed(memory: &'a MmShared<'p, P>) -> Result<Self, AllocError> {
        let frame = memory.pages().requests().alloc_zero_page(Gfp::USER)?.into_raw();
        Ok(Self { memory, frame, contents: Contents::Zeroed })
    }

    pub(super) fn frame(&self) -> Frame {
        self.frame
    }

    /// The page table or the file owns it from now on.
    pub(super) fn give(self) {
        mem::forget(self);
    }
}

impl<P: Platform> Drop for OwnFrame<'_, '_, P> {
    fn drop(&mut self) {
        // SAFETY: invariant 1: this value owned the frame, and `give` was not called.
        let folio = unsafe { self.memory.pages().frames().folio_from_raw(self.frame, Order::FRAME) };
        match self.contents {
            Contents::Zeroed => self.memory.give_up_zeroed(folio),
            Contents::Unknown => self.memory.give_up(folio),
        }
    }
}

/// Calls `fill` for each frame, with its distance from the first in bytes, and its bytes.
///
/// # Safety
/// The frames are the caller's alone, and lie in one range.
pub(super) unsafe fn fill_frames<P: Platform>(
    platform: &P,
    frames: FrameRange,
    fill: &mut dyn FnMut(u64, &mut PageBytes),
) {
    for at in 0..frames.count {
        let bytes = platform.direct_map(frames.start.add(at).addr()).cast::<PageBytes>();
        // SAFETY: invariant 1: the direct map gives the frame's 4096 bytes, which are the caller's alone.
        fill(at * FRAME_SIZE, unsafe { &mut *bytes });
        if (at + 1) % u64::from(POPULATE_FAULTS) == 0 {
            platform.reschedule_point();
        }
    }
}
