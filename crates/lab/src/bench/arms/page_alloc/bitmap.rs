//! The crate `bitmap-allocator`: a tree of bitmaps, 16 ways.

use std::sync::Arc;

use bitmap_allocator::{BitAlloc, BitAlloc1M};
use spin::mutex::SpinMutex;

use super::case::{Frames, PageAlloc};
use super::peer::prepare;
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
        let bits = move || {
            let mut bits = Box::new(BitAlloc1M::DEFAULT);
            bits.insert(0..frames);
            bits
        };
        if case.threads == 1 {
            return prepare(case, move || Ok(vec![Bare(bits())]));
        }
        let threads = case.threads;
        prepare(case, move || {
            let shared = Arc::new(SpinMutex::<_>::new(bits()));
            Ok((0..threads).map(|_| Locked(Arc::clone(&shared))).collect())
        })
    }
}

struct Bare(Box<BitAlloc1M>);

struct Locked(Arc<SpinMutex<Box<BitAlloc1M>>>);

#[inline(always)]
fn take<const ORDER: u8>(bits: &mut BitAlloc1M) -> Option<usize> {
    if ORDER == 0 { bits.alloc() } else { bits.alloc_contiguous(None, 1 << ORDER, ORDER.into()) }
}

#[inline(always)]
fn give<const ORDER: u8>(bits: &mut BitAlloc1M, frame: usize) {
    if ORDER == 0 {
        bits.dealloc(frame);
    } else {
        bits.dealloc_contiguous(frame, 1 << ORDER);
    }
}

impl Frames for Bare {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        take::<ORDER>(&mut self.0)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        give::<ORDER>(&mut self.0, frame);
    }
}

impl Frames for Locked {
    type Frame = usize;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        take::<ORDER>(&mut self.0.lock())
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        give::<ORDER>(&mut self.0.lock(), frame);
    }
}
