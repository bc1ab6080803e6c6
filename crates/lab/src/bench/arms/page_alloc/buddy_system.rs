//! The crate `buddy_system_allocator`: buddy lists as ordered trees.

use std::sync::Arc;

use buddy_system_allocator::LockedFrameAllocator;

use super::measured::Measured;
use super::{Frames, PageAlloc};
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) const NAME: &str = "buddy_system_allocator";

/// `LockedFrameAllocator`, as its documentation shows it.
pub(super) struct BuddySystem;

impl Arm<PageAlloc> for BuddySystem {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "0.13 LockedFrameAllocator, its own spin lock around every call, with one thread too; trees on the heap."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let shared = Arc::new(LockedFrameAllocator::<33>::new());
        shared.lock().add_frame(0, case.frames);
        let sources = (0..case.threads).map(|_| Locked(Arc::clone(&shared))).collect();
        Ok(Box::new(Measured::new(case, sources)))
    }
}

struct Locked(Arc<LockedFrameAllocator<33>>);

impl Frames for Locked {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.0.lock().alloc(1)
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        self.0.lock().dealloc(frame, 1);
    }
}
