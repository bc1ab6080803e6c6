//! The crate `buddy_system_allocator`: buddy lists as ordered trees.

use std::sync::Arc;

use buddy_system_allocator::LockedFrameAllocator;

use super::case::{Frames, PageAlloc};
use super::peer::prepare;
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) const NAME: &str = "buddy_system_allocator";

/// `LockedFrameAllocator`, as its documentation shows it.
pub(super) struct BuddySystem;

impl Arm<PageAlloc> for BuddySystem {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "LockedFrameAllocator of version 0.13, with its own spin lock around every call and its trees on the \
         heap."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (frames, threads) = (case.frames, case.threads);
        prepare(case, move || {
            let shared = Arc::new(LockedFrameAllocator::<33>::new());
            shared.lock().add_frame(0, frames);
            Ok((0..threads).map(|_| Locked(Arc::clone(&shared))).collect())
        })
    }
}

struct Locked(Arc<LockedFrameAllocator<33>>);

impl Frames for Locked {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        self.0.lock().alloc(1 << ORDER)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        self.0.lock().dealloc(frame, 1 << ORDER);
    }
}
