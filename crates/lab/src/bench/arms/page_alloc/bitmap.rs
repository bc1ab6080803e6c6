//! The crate `bitmap-allocator`: a tree of bitmaps, 16 ways.

use bitmap_allocator::{BitAlloc, BitAlloc1M};

use super::case::PageAlloc;
use super::peer::{Unlocked, prepare_unlocked};
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) const NAME: &str = "bitmap-allocator";

pub(super) struct Bitmap;

impl Arm<PageAlloc> for Bitmap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "BitAlloc1M of version 0.4, which has no lock: with several threads, a spin lock is around every \
         call."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.frames > BitAlloc1M::CAP {
            return Err(Skip(format!("BitAlloc1M holds at most {} frames", BitAlloc1M::CAP)));
        }
        let frames = case.frames;
        prepare_unlocked(case, move || {
            let mut bits = Box::new(BitAlloc1M::DEFAULT);
            bits.insert(0..frames);
            Ok(bits)
        })
    }
}

impl Unlocked for Box<BitAlloc1M> {
    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        if ORDER == 0 { self.alloc() } else { self.alloc_contiguous(None, 1 << ORDER, ORDER.into()) }
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        if ORDER == 0 {
            self.dealloc(frame);
        } else {
            self.dealloc_contiguous(frame, 1 << ORDER);
        }
    }
}
