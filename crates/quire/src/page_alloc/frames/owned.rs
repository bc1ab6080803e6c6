//! Owned frames: an allocation is a value that cannot be copied.
//!
//! Safe code reaches the memory of a frame only through the value that owns it: clearing and copying borrow
//! it mutably, freeing takes it. A value gives its frames up in one of two ways.
//! [`PageAllocator::free`](crate::page_alloc::PageAllocator::free) and its relatives return them to the
//! allocator. `into_raw` hands them over to something that refers to frames by number: page-table leaves, the
//! page cache, a pool. They come back from there by the map counts, or through
//! [`Frames::folio_from_raw`](crate::page_alloc::Frames::folio_from_raw), which is `unsafe`.
//!
//! Dropping a value frees nothing: its frames stay in use for good. The compiler warns (`must_use`).
//!
//! In debug builds each value remembers its allocator, and others refuse it
//! ([`FreeError::Foreign`](crate::error::FreeError::Foreign)).
#![forbid(unsafe_code)]

use core::fmt;

use crate::addr::{Frame, FrameRange, Order};

/// The allocator that frames came from, by the address of its memory map. Empty in release builds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::page_alloc) struct Owner {
    #[cfg(debug_assertions)]
    pub(in crate::page_alloc) memmap: usize,
}

/// One folio that its holder alone owns: 2^order consecutive frames, aligned to their size.
///
/// A folio that was freed is gone:
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::{FramePlatform, TouchHint}};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let mut folio = pages.alloc(Gfp::KERNEL, Order::FRAME)?;
/// pages.free(folio)?;
/// pages.frames().clear(&mut folio, TouchHint::Soon); // Use after free.
/// # Ok(()) }
/// ```
///
/// It cannot be freed twice:
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let folio = pages.alloc(Gfp::KERNEL, Order::FRAME)?;
/// pages.free(folio)?;
/// pages.free(folio)?; // Double free.
/// # Ok(()) }
/// ```
///
/// A folio that a page table maps belongs to the table. Its value is gone, and neither frees nor writes it:
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::FramePlatform};
/// # fn map(frame: quire::addr::Frame) {}
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let folio = pages.alloc(Gfp::USER, Order::FRAME)?;
/// map(folio.into_raw());
/// pages.free(folio)?; // Free while mapped.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::{FramePlatform, TouchHint}};
/// # fn map(frame: quire::addr::Frame) {}
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let mut folio = pages.alloc(Gfp::USER, Order::FRAME)?;
/// map(folio.into_raw());
/// pages.frames().clear(&mut folio, TouchHint::Soon); // Write to memory that a program uses.
/// # Ok(()) }
/// ```
///
/// A number is no folio, and becomes one in `unsafe` code only:
///
/// ```compile_fail,E0308
/// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
/// let freed = pages.free(Frame(42));
/// # }
/// ```
///
/// ```compile_fail,E0133
/// # use quire::{addr::{Frame, Order}, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
/// let freed = pages.free(pages.frames().folio_from_raw(Frame(42), Order::FRAME));
/// # }
/// ```
///
/// Nor is a number the source of a copy, or turned into a page of a pool:
///
/// ```compile_fail,E0308
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::{FramePlatform, TouchHint}};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let mut folio = pages.alloc(Gfp::KERNEL, Order::FRAME)?;
/// let all = folio.frames();
/// pages.frames().copy(all, &mut folio, TouchHint::Soon); // Overlaps, or lies outside of memory.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0502
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::{FramePlatform, TouchHint}};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let mut folio = pages.alloc(Gfp::KERNEL, Order::BLOCK)?;
/// let copied = pages.frames().copy_extent(&folio, &mut folio, TouchHint::Soon); // Onto itself.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0308
/// # use quire::{addr::Frame, page_alloc::PageAllocator, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) {
/// pages.frames().make_huge(Frame(42)); // Overwrites which folios a block in small pieces has.
/// # }
/// ```
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let folio = pages.alloc(Gfp::USER, Order::BLOCK)?;
/// pages.frames().make_huge(folio);
/// pages.free(folio)?; // The pool owns it.
/// # Ok(()) }
/// ```
///
/// The parts of a folio that was split are folios, and the whole is none any more:
///
/// ```compile_fail,E0382
/// # use quire::{addr::Order, page_alloc::{Gfp, PageAllocator}, platform::FramePlatform};
/// # fn example<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<(), Box<dyn core::error::Error>> {
/// let folio = pages.alloc(Gfp::KERNEL, Order::BLOCK)?;
/// let Ok(parts) = pages.split(folio, Order::FRAME) else { return Ok(()) };
/// pages.free(folio)?; // Freed with the order that it had.
/// # Ok(()) }
/// ```
#[must_use = "the frames of a folio that is dropped stay in use for good"]
#[derive(PartialEq, Eq)]
pub struct Folio {
    frame: Frame,
    order: Order,
    pub(in crate::page_alloc) owner: Owner,
}

/// Consecutive frames that their holder alone owns, whatever folios they are made of. Any part can be freed
/// by itself ([`PageAllocator::free_range`](crate::page_alloc::PageAllocator::free_range)).
#[must_use = "frames that are dropped stay in use for good"]
#[derive(PartialEq, Eq)]
pub struct FrameRun {
    frames: FrameRange,
    pub(in crate::page_alloc) owner: Owner,
}

/// Folios of one order that their holder alone owns. It borrows the caller's array with their numbers, and as
/// an iterator gives them away one by one.
#[must_use = "the frames of folios that are dropped stay in use for good"]
pub struct Folios<'a> {
    frames: &'a [Frame],
    order: Order,
    pub(in crate::page_alloc) owner: Owner,
}

impl Folio {
    #[inline(always)]
    pub(in crate::page_alloc) const fn new(frame: Frame, order: Order, owner: Owner) -> Self {
        Self { frame, order, owner }
    }

    /// The number of its first frame.
    #[inline]
    pub const fn frame(&self) -> Frame {
        self.frame
    }

    /// Its size.
    #[inline]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// The numbers of its frames.
    #[inline]
    pub const fn frames(&self) -> FrameRange {
        FrameRange::folio(self.frame, self.order)
    }

    /// Hands the folio over to something that refers to it by number. That owns it from now on.
    #[inline]
    #[must_use = "the frames of a folio that nothing refers to stay in use for good"]
    pub const fn into_raw(self) -> Frame {
        self.frame
    }

    /// The same frames, parts of which can be freed by themselves.
    #[inline]
    pub const fn into_run(self) -> FrameRun {
        FrameRun { frames: self.frames(), owner: self.owner }
    }
}

impl FrameRun {
    #[inline]
    pub(in crate::page_alloc) const fn new(frames: FrameRange, owner: Owner) -> Self {
        Self { frames, owner }
    }

    /// The numbers of its frames.
    #[inline]
    pub const fn frames(&self) -> FrameRange {
        self.frames
    }

    /// Hands the frames over to something that refers to them by number. That owns them from now on.
    #[inline]
    #[must_use = "frames that nothing refers to stay in use for good"]
    pub const fn into_raw(self) -> FrameRange {
        self.frames
    }

    /// The first `count` frames, and the others; all of them and none where it has fewer.
    pub const fn split_at(self, count: u64) -> (Self, Self) {
        let count = if count < self.frames.count { count } else { self.frames.count };
        let (start, rest) = (self.frames.start, self.frames.count - count);
        let first = Self { frames: FrameRange::new(start, count), owner: self.owner };
        (first, Self { frames: FrameRange::new(start.add(count), rest), owner: self.owner })
    }
}

impl<'a> Folios<'a> {
    /// Their size.
    pub const fn order(&self) -> Order {
        self.order
    }

    /// The numbers of their first frames.
    pub const fn frames(&self) -> &[Frame] {
        self.frames
    }

    /// Hands the folios over to something that refers to them by number. That owns them from now on.
    #[must_use = "the frames of folios that nothing refers to stay in use for good"]
    pub const fn into_raw(self) -> &'a [Frame] {
        self.frames
    }

    #[inline]
    pub(in crate::page_alloc) const fn new(frames: &'a [Frame], order: Order, owner: Owner) -> Self {
        Self { frames, order, owner }
    }
}

impl Iterator for Folios<'_> {
    type Item = Folio;

    fn next(&mut self) -> Option<Folio> {
        let (&frame, rest) = self.frames.split_first()?;
        self.frames = rest;
        Some(Folio { frame, order: self.order, owner: self.owner })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.frames.len(), Some(self.frames.len()))
    }
}

impl ExactSizeIterator for Folios<'_> {}

impl fmt::Debug for Folio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folio({:?}, {:?})", self.frame, self.order)
    }
}

impl fmt::Debug for FrameRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameRun({:?})", self.frames)
    }
}

impl fmt::Debug for Folios<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Folios({:?}, {:?})", self.frames, self.order)
    }
}
