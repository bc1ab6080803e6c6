//! The crate `free-list`: the free ranges in an array, by address.

#![allow(unsafe_code)]

use std::sync::Arc;

use free_list::{FreeList, PageLayout, PageRange};
use spin::mutex::SpinMutex;

use super::case::{Frames, PageAlloc};
use super::peer::prepare;
use crate::bench::experiment::{Arm, Prepared, Skip};
use crate::bench::folio::PAGE;

pub(super) const NAME: &str = "free-list";

/// Ranges that the list holds in itself. Any number, since it takes memory from the heap for more.
const WITHIN: usize = 64;

type List = FreeList<WITHIN>;

/// `FreeList` over addresses that stand for frames.
pub(super) struct Ranges;

impl Arm<PageAlloc> for Ranges {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "FreeList of version 0.3, which has no lock: with several threads, a spin lock is around every call. The \
         free ranges stand in an array by address; a request searches it from the start, and a free searches all of it."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (frames, threads) = (case.frames, case.threads);
        if threads == 1 {
            return prepare(case, move || Ok(vec![Bare(of(frames)?)]));
        }
        prepare(case, move || {
            let shared = Arc::new(SpinMutex::<_>::new(of(frames)?));
            Ok((0..threads).map(|_| Locked(Arc::clone(&shared))).collect())
        })
    }
}

/// A list of `frames` free frames. Frame 0 is left out, since a range at address 0 is none of a kernel's.
fn of(frames: usize) -> Result<List, Skip> {
    let mut list = List::new();
    let whole = PageRange::from_start_len(PAGE, frames * PAGE);
    let whole = whole.map_err(|error| Skip::because("FreeList refuses the range", error))?;
    // SAFETY: C1: the loops name frames by address and never reach what is there, and no other list has them.
    unsafe { list.deallocate(whole) }.map_err(|error| Skip::because("FreeList refuses the range", error))?;
    Ok(list)
}

struct Bare(List);

struct Locked(Arc<SpinMutex<List>>);

#[inline(always)]
fn take<const ORDER: u8>(list: &mut List) -> Option<usize> {
    // The layout is a constant once this is inlined.
    let layout = PageLayout::from_size_align(PAGE << ORDER, PAGE << ORDER).ok()?;
    list.allocate(layout).ok().map(PageRange::start)
}

#[inline(always)]
fn give<const ORDER: u8>(list: &mut List, frame: usize) {
    let range = PageRange::from_start_len(frame, PAGE << ORDER);
    // SAFETY: C1: the loops give back what they took, by the same order, once.
    let given = range.map(|range| unsafe { list.deallocate(range) });
    debug_assert_eq!(given, Ok(Ok(())));
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

    fn bears_scattered_frames() -> bool {
        false
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
