//! Lists without memory of their own: frames linked through descriptors, huge pages through block records.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::memmap::MemMap;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;

/// Single frames of blocks in small pieces, which this list owns; last in, first out.
#[derive(Default)]
pub(super) struct FrameChain {
    /// The first frame's number plus one.
    first: u64,
    len: u64,
}

impl FrameChain {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn push<P: TablePlatform>(&mut self, pages: &PageAllocator<'_, P>, frame: Frame) {
        pages.frames().descriptor(frame).next.store(self.first, Ordering::Relaxed);
        self.first = frame.0 + 1;
        self.len += 1;
    }

    pub(super) fn pop<P: TablePlatform>(&mut self, pages: &PageAllocator<'_, P>) -> Option<Frame> {
        let frame = Frame(self.first.checked_sub(1)?);
        self.first = pages.frames().descriptor(frame).next.load(Ordering::Relaxed);
        self.len -= 1;
        Some(frame)
    }

    /// Frees all of them; returns how many.
    pub(super) fn free<P: TablePlatform>(&mut self, pages: &PageAllocator<'_, P>) -> u64 {
        let count = self.len;
        while let Some(frame) = self.pop(pages) {
            // SAFETY: invariant 1: the chain owned the frame, which nothing of the window names any more.
            let freed = pages.free(unsafe { pages.frames().folio_from_raw(frame, Order::FRAME) });
            debug_assert_eq!(freed, Ok(()), "a frame of the window is in use until it is freed here");
        }
        count
    }
}

/// Huge pages that are in no pool and belong to the holder of the list; first in, first out.
#[derive(Default)]
pub(crate) struct PageChain {
    /// Block numbers plus one.
    first: u32,
    last: u32,
    len: u64,
}

impl PageChain {
    /// An empty list.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self { first: 0, last: 0, len: 0 }
    }

    /// A list of these pages.
    pub(crate) fn of(memmap: &MemMap, frames: impl Iterator<Item = Frame>) -> Self {
        let mut chain = Self::new();
        frames.for_each(|frame| chain.push(memmap, frame));
        chain
    }

    /// How many pages there are.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The page that was added first.
    pub(crate) fn first(&self) -> Option<Frame> {
        self.first.checked_sub(1).map(|number| BlockNumber(number).first_frame())
    }

    /// Adds a page at the end.
    pub(crate) fn push(&mut self, memmap: &MemMap, frame: Frame) {
        let number = frame.block().0 + 1;
        memmap.block(frame.block()).next.store(0, Ordering::Relaxed);
        match self.last.checked_sub(1) {
            Some(last) => memmap.block(BlockNumber(last)).next.store(number, Ordering::Relaxed),
            None => self.first = number,
        }
        self.last = number;
        self.len += 1;
    }

    /// Takes the page that was added first.
    pub(crate) fn pop(&mut self, memmap: &MemMap) -> Option<Frame> {
        let frame = self.first()?;
        self.first = memmap.block(frame.block()).next.load(Ordering::Relaxed);
        if self.first == 0 {
            self.last = 0;
        }
        self.len -= 1;
        Some(frame)
    }

    /// All of them in order, without taking them out.
    pub(crate) fn iter<'m>(&self, memmap: &'m MemMap) -> impl Iterator<Item = Frame> + use<'m> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let number = BlockNumber(next.checked_sub(1)?);
            next = memmap.block(number).next.load(Ordering::Relaxed);
            Some(number.first_frame())
        })
    }
}
