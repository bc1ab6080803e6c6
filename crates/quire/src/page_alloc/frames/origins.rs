//! The origins of anonymous folios: where each was first mapped, and the family of that address space.
//!
//! A folio of order 0 to 8 has its origin in a column of its block's area, one of order 9 in its record. The
//! origin is written once, before the folio is first mapped, and a split passes it on to the parts. Pages of
//! files, except huge ones, and the manager's own memory have origins of no family, so that a reader of held
//! memory can tell them apart. Origins are never cleared: that of any other frame means nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order, VirtAddr};
use crate::limits::FRAME_SHIFT;
use crate::memmap::{Area, BlockState};
use crate::page_alloc::frames::Frames;
use crate::page_alloc::frames::state::head_of;
use crate::platform::FramePlatform;

/// The page at which an anonymous frame was first mapped, and the low bits of its family's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(pub(in crate::page_alloc) u64);

impl Origin {
    const PAGE_BITS: u32 = 44;
    /// Bits kept of an address: addresses are added and subtracted modulo 2 to this power.
    pub(crate) const ADDR_BITS: u32 = Self::PAGE_BITS + FRAME_SHIFT;
    /// Bits kept of a family's number: families that agree in them are not told apart.
    const FAMILY_BITS: u32 = u64::BITS - Self::PAGE_BITS;
    /// What is kept of a family's number for memory that has none.
    pub(crate) const NOBODY: u64 = 0;
    /// Of memory that the manager holds for itself.
    const MANAGER: Self = Self(1 << (Self::PAGE_BITS - 1));

    /// The origin of a page of a family.
    #[inline]
    pub fn new(family: u64, addr: VirtAddr) -> Self {
        Self(family << Self::PAGE_BITS | addr.page() & ((1 << Self::PAGE_BITS) - 1))
    }

    /// The address of the page.
    pub fn addr(self) -> VirtAddr {
        VirtAddr(self.0 << Self::FAMILY_BITS >> (Self::FAMILY_BITS - FRAME_SHIFT))
    }

    /// The bits kept of the family's number.
    pub fn family(self) -> u64 {
        self.0 >> Self::PAGE_BITS
    }

    fn is_of_file(self) -> bool {
        self.family() == Self::NOBODY
    }

    /// The origin of the folio that starts at an index of a block in small pieces.
    pub(in crate::page_alloc) fn at(area: &Area, index: usize) -> Self {
        Self(area.origin(index).load(Ordering::Relaxed))
    }

    pub(in crate::page_alloc) fn is_managers(self) -> bool {
        self == Self::MANAGER
    }

    /// The bits kept of any family's number.
    pub fn kept(family: u64) -> u64 {
        family & ((1 << Self::FAMILY_BITS) - 1)
    }
}

impl<P: FramePlatform> Frames<'_, P> {
    /// Sets the origin of the folio in use that starts at `frame`, before it is mapped for the first time.
    #[inline]
    pub(crate) fn set_origin(&self, frame: Frame, origin: Origin) {
        let block = self.memmap.block(frame.block());
        match block.area() {
            Some(area) => area.origin(frame.index_in_block()).store(origin.0, Ordering::Relaxed),
            None => block.folio().index.store(origin.0, Ordering::Relaxed),
        }
    }

    /// Holds a folio that the manager needs for itself, so that no reader takes it for a page.
    pub(crate) fn hold_for_manager(&self, folio: FrameRange) {
        self.set_origin(folio.start, Origin::MANAGER);
        self.hold(folio);
    }

    /// Holds frames that become pages of a file.
    pub(crate) fn hold_for_file(&self, frames: FrameRange) {
        self.give_to_file(frames);
        self.hold(frames);
    }

    /// Marks frames that are about to be held as a file's.
    pub(in crate::page_alloc) fn give_to_file(&self, frames: FrameRange) {
        (frames.start.0..frames.end().0)
            .for_each(|frame| self.set_origin(Frame(frame), Origin(Origin::NOBODY)));
    }

    /// Whether a held frame is a file's; else it is a private huge page, or is pinned or moves.
    pub(crate) fn is_of_file(&self, frame: Frame) -> bool {
        let huge =
            |&start: &Frame| [Order::BLOCK, Order::GIGANTIC].iter().any(|&order| self.is_huge(start, order));
        match self.folio_start(frame).filter(huge) {
            // The origin of a file's huge page is whatever it was before.
            Some(start) => !self.is_lent(start),
            None => self.origin(frame).is_some_and(Origin::is_of_file),
        }
    }

    /// The origin of a frame of an anonymous folio in use.
    pub(crate) fn origin(&self, frame: Frame) -> Option<Origin> {
        let (block, index) = (self.memmap.get(frame.block())?, frame.index_in_block());
        block.lock(self.platform);
        let start = match (block.state(), block.area()) {
            (BlockState::Small, Some(area)) if block.used.contains(index) => block
                .heads
                .load()
                .previous_set(index)
                .map(|head| area.origin(head).load(Ordering::Relaxed).wrapping_add((index - head) as u64)),
            (BlockState::Folio | BlockState::FolioTail, _) => {
                let head = head_of(frame.block(), block.order.load(Ordering::Relaxed));
                let origin = self.memmap.block(head).folio().index.load(Ordering::Relaxed);
                Some(origin.wrapping_add(frame.0 - head.first_frame().0))
            }
            _ => None,
        };
        block.unlock(self.platform);
        start.map(Origin)
    }
}
