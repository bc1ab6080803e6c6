//! The crate `free-list`: the free ranges in an array, by address.

#![allow(unsafe_code)]

use free_list::{FreeList, PageLayout, PageRange};

use super::case::PageAlloc;
use super::peer::{Unlocked, prepare_unlocked};
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
        let frames = case.frames;
        prepare_unlocked(case, move || of(frames))
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

impl Unlocked for List {
    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        // The layout is a constant once this is inlined.
        let layout = PageLayout::from_size_align(PAGE << ORDER, PAGE << ORDER).ok()?;
        self.allocate(layout).ok().map(PageRange::start)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: usize) {
        let range = PageRange::from_start_len(frame, PAGE << ORDER);
        // SAFETY: C1: the loops give back what they took, by the same order, once.
        let given = range.map(|range| unsafe { self.deallocate(range) });
        debug_assert_eq!(given, Ok(Ok(())));
    }

    fn bears_scattered_frames() -> bool {
        false
    }
}
