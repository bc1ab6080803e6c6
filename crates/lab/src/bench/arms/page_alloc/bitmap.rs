//! The crate `bitmap-allocator`: a tree of bitmaps, 16 ways.

use std::sync::Arc;

use bitmap_allocator::{BitAlloc, BitAlloc1M};
use spin::mutex::SpinMutex;

use super::measured::Measured;
use super::{Frames, PageAlloc};
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) const NAME: &str = "bitmap-allocator";

/// `BitAlloc1M`.
pub(super) struct Bitmap;

impl Arm<PageAlloc> for Bitmap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "0.4 BitAlloc1M, which has no lock: none with one thread, a spin lock around every call with two."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.frames > BitAlloc1M::CAP {
            return Err(Skip(format!("BitAlloc1M holds at most {} frames", BitAlloc1M::CAP)));
        }
        let mut bits = Box::new(BitAlloc1M::DEFAULT);
        bits.insert(0..case.frames);
        if case.threads == 1 {
            return Ok(Box::new(Measured::new(case, vec![Bare(bits)])));
        }
        let shared = Arc::new(SpinMutex::<_>::new(bits));
        let sources = (0..case.threads).map(|_| Locked(Arc::clone(&shared))).collect();
        Ok(Box::new(Measured::new(case, sources)))
    }
}

struct Bare(Box<BitAlloc1M>);

impl Frames for Bare {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.0.alloc()
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        self.0.dealloc(frame);
    }
}

struct Locked(Arc<SpinMutex<Box<BitAlloc1M>>>);

impl Frames for Locked {
    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.0.lock().alloc()
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        self.0.lock().dealloc(frame);
    }
}
