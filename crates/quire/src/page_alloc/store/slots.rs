//! The data of slots for map counts: their sizes, and lists of frames with slots.
#![forbid(unsafe_code)]

#[cfg(feature = "published")]
use crate::addr::Order;
use crate::addr::PhysAddr;
use crate::limits::FRAME_SIZE;
use crate::memmap::{LaneWidth, Lanes};

/// A slot: memory for the counts of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::page_alloc) struct CountSlot {
    pub(in crate::page_alloc) at: PhysAddr,
    pub(in crate::page_alloc) width: LaneWidth,
}

/// Frames of slots, each list by its first frame's number plus one.
#[derive(Default)]
pub(in crate::page_alloc) struct CountRoom {
    /// For each size, frames with some free slots; then frames of the small size with all slots free.
    pub(in crate::page_alloc) first: [u64; 3],
    /// Free slots of the small size that are not promised.
    pub(in crate::page_alloc) spare: u64,
    /// Frames of the small size.
    pub(in crate::page_alloc) frames: u64,
}

/// The list of frames of the small size with all slots free.
pub(in crate::page_alloc) const EMPTY: usize = 2;

/// Slots of the small size in a frame.
pub(in crate::page_alloc) const PER_FRAME: u64 = FRAME_SIZE / bytes_of(0);

impl CountRoom {
    /// Whether a frame could be freed.
    pub(in crate::page_alloc) fn has_excess(&self) -> bool {
        let idle = self.spare == self.frames * PER_FRAME;
        self.first[EMPTY] != 0 && self.spare >= if idle { PER_FRAME } else { 2 * PER_FRAME }
    }
}

impl CountSlot {
    /// The slot that a record names.
    pub(in crate::page_alloc) fn of((at, width): (PhysAddr, LaneWidth)) -> Self {
        Self { at, width }
    }

    /// Which of the two sizes it has.
    pub(in crate::page_alloc) fn class(self) -> usize {
        usize::from(self.width == LaneWidth::Wide)
    }
}

/// Bytes of a slot of a class.
pub(in crate::page_alloc) const fn bytes_of(class: usize) -> u64 {
    (if class == 0 { Lanes::NARROW_BYTES } else { Lanes::WIDE_BYTES }) as u64
}

/// The bit of each slot of a frame.
pub(in crate::page_alloc) const fn all_of(class: usize) -> u64 {
    (1 << (FRAME_SIZE / bytes_of(class))) - 1
}

/// A folio for the cells of one block.
#[cfg(feature = "published")]
pub(in crate::page_alloc) const CELLS: Order = match Order::new(3) {
    Some(order) => order,
    None => Order::FRAME,
};

#[cfg(feature = "published")]
const _: () = assert!(CELLS.bytes() == Lanes::bytes(LaneWidth::Cells) as u64);
