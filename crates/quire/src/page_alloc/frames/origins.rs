//! The origins of anonymous folios: where each was first mapped, and the family of that address space.
//!
//! A folio of order 9 has its origin in its block's record, one of order 4 to 8 in a column. One of order 0
//! to 3 has it in its block's table of origins; a block gets the table when the first such folio is about to
//! be mapped (`page_alloc/request/tables.rs`). The origin is written once, before the folio is first mapped,
//! and a split passes it on to the parts. Pages of files, except huge ones, and the manager's own memory have
//! origins of no family, so that a reader of held memory can tell them apart. Origins are never cleared: that
//! of any other frame means nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order, VirtAddr};
use crate::limits::FRAME_SHIFT;
use crate::memmap::{Block, BlockState, Columns, DescriptorFlags};
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
    pub(crate) const NO_FAMILY: u64 = 0;
    /// Of memory that the manager holds for itself.
    pub(in crate::page_alloc) const MANAGER: Self = Self(1 << (Self::PAGE_BITS - 1));
    /// Of no page.
    pub(crate) const NONE: Self = Self(0);
    /// Of a page of a file.
    const FILE: Self = Self(1 << (Self::PAGE_BITS - 2));

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
        self.family() == Self::NO_FAMILY
    }

    /// The origin of the folio that starts at an index of a block in small pieces.
    pub(in crate::page_alloc) fn at(columns: &Columns, index: usize) -> Self {
        Self(columns.origin(index))
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
    /// Sets the origin of the folio in use of this order that starts at `frame`, before it is mapped for the
    /// first time. Returns whether it could: a small one needs a table of origins
    /// ([`Requests::set_origin`](crate::page_alloc::Requests) adds one).
    #[inline]
    pub(in crate::page_alloc) fn set_origin(&self, frame: Frame, order: Order, origin: Origin) -> bool {
        let block = self.memmap.block(frame.block());
        match block.columns() {
            Some(columns) => columns.set_origin(frame.index_in_block(), order, origin.0),
            None => {
                block.folio().index.store(origin.0, Ordering::Relaxed);
                true
            }
        }
    }

    /// Sets the origin of a folio of order 9 or more.
    pub(crate) fn set_whole_origin(&self, frame: Frame, origin: Origin) {
        let set = self.is_of_whole_blocks(frame) && self.set_origin(frame, Order::BLOCK, origin);
        debug_assert!(set, "{frame:?} is in small pieces");
    }

    /// Marks frames that are about to be held as a file's. Returns whether it could mark all: a frame with
    /// the origin of an earlier folio cannot be marked without a table of origins.
    pub(in crate::page_alloc) fn give_to_file(&self, frames: FrameRange) -> bool {
        (frames.start.0..frames.end().0).map(Frame).all(|frame| {
            let columns = self.memmap.block(frame.block()).columns();
            let index = frame.index_in_block();
            for mark in [DescriptorFlags::ACCESSED, DescriptorFlags::DIRTY] {
                columns.inspect(|columns| _ = columns.take_mark(index, mark));
            }
            let is_marked = || columns.is_some_and(|columns| Origin::at(columns, index).is_of_file());
            self.set_origin(frame, Order::FRAME, Origin::FILE) || is_marked()
        })
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
        let block = self.memmap.get_around(frame)?;
        block.lock(self.platform);
        let origin = self.origin_in(block, frame);
        block.unlock(self.platform);
        origin
    }

    /// The same, under the lock of the frame's block.
    pub(in crate::page_alloc) fn origin_in(&self, block: &Block, frame: Frame) -> Option<Origin> {
        let index = frame.index_in_block();
        let origin = match (block.state(), block.columns()) {
            (BlockState::Small, Some(columns)) if block.used.contains(index) => {
                let head = block.heads.load().previous_set(index)?;
                columns.origin(head).wrapping_add((index - head) as u64)
            }
            (BlockState::Folio | BlockState::FolioTail, _) => {
                let head = head_of(frame.block(), block.order.load(Ordering::Relaxed));
                let origin = self.memmap.block(head).folio().index.load(Ordering::Relaxed);
                origin.wrapping_add(frame.0 - head.first_frame().0)
            }
            _ => return None,
        };
        Some(Origin(origin))
    }
}
