//! Slots of memory for the map counts of folios of whole blocks that are mapped in pieces.
//!
//! A slot holds lanes of a byte, or bits, for one block (512 bytes), or lanes of four bytes (2 KiB): 0.024 % or 0.098 % of
//! what they count. Slots of a size share frames of order 0. The frame's descriptor says which of its slots are taken, and links it
//! with others of which some are free. A frame without slots goes back at once, so what is mapped whole costs nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::count_scheme::CountScheme;
use super::counts::head_of;
use super::gfp::{Gfp, Urgency};
use crate::addr::{Frame, Order, PhysAddr};
use crate::error::AllocError;
use crate::limits::FRAME_SIZE;
use crate::memmap::{Block, BlockState, Descriptor, DescriptorFlags, FrameState, LaneWidth, Lanes};
use crate::platform::Platform;
use crate::stats::Stat;

/// Room for the counts of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountSlot {
    pub(super) at: PhysAddr,
    pub(super) width: LaneWidth,
}

/// The first frame, as its number plus one, of those of each size of which some slots are free.
#[derive(Default)]
pub(super) struct CountRoom([u64; 2]);

/// A folio for the cells of one block.
const CELLS: Order = match Order::new(3) {
    Some(order) => order,
    None => Order::FRAME,
};

const _: () = assert!(CELLS.bytes() == Lanes::bytes(LaneWidth::Cells) as u64);

impl CountSlot {
    /// The slot that a record names.
    pub(super) fn of((at, width): (PhysAddr, LaneWidth)) -> Self {
        Self { at, width }
    }

    /// Which of the two sizes it has.
    fn class(self) -> usize {
        usize::from(self.width == LaneWidth::Wide)
    }
}

/// Bytes of a slot of a class.
const fn bytes_of(class: usize) -> u64 {
    (if class == 0 { Lanes::NARROW_BYTES } else { Lanes::WIDE_BYTES }) as u64
}

/// The bit of each slot of a frame.
const fn all_of(class: usize) -> u64 {
    (1 << (FRAME_SIZE / bytes_of(class))) - 1
}

impl<P: Platform> PageAllocator<'_, P> {
    /// Sees to it that one more 4 KiB leaf can be counted for every frame of the block of `frame`: gives a block of a folio of
    /// whole blocks a slot for its lanes, and widens lanes of which one is full. May allocate, so not under a page-table lock.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub fn prepare_counts(&self, frame: Frame) -> Result<(), AllocError> {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        let before = block.lanes_at();
        let enough = match block.area() {
            Some(area) => {
                block.widen_area(area);
                true
            }
            None => block.has_room_for_small(self.platform),
        };
        block.unlock(self.platform);
        if enough {
            return Ok(());
        }
        let slot = self.take_slot(match (self.scheme, before) {
            (CountScheme::PerFrame, _) => LaneWidth::Cells,
            (_, None) => LaneWidth::Bits,
            (_, Some(_)) => LaneWidth::Wide,
        })?;
        self.zero(slot.at, Lanes::bytes(slot.width));
        block.lock(self.platform);
        // It may have been split meanwhile, or somebody else was faster.
        let folio = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let unused = if folio && block.lanes_at() == before {
            block.change_slot(self.platform, slot.at, slot.width);
            FrameState::UNKNOWN.put(block.folio_state_cell());
            before.map(CountSlot::of)
        } else {
            Some(slot)
        };
        block.unlock(self.platform);
        if let Some(slot) = unused {
            self.give_slot(slot);
        }
        Ok(())
    }

    /// Gives back what [`Self::prepare_counts`] prepared for a block of a folio of whole blocks, if nothing is counted there.
    pub fn forget_counts(&self, frame: Frame) {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        let slot = block.take_unused_slot(self.platform).map(CountSlot::of);
        block.unlock(self.platform);
        if let Some(slot) = slot {
            self.give_slot(slot);
        }
    }

    /// Whether counts of a block of a folio of whole blocks may stand in its record while no frame is counted twice: in pages of a
    /// pool, which nobody splits while they are mapped.
    pub(super) fn counts_in_record(&self, frame: Frame, block: &Block) -> bool {
        let order = block.order.load(Ordering::Relaxed);
        block.state() == BlockState::FolioTail
            && self.memmap.block(head_of(frame.block(), order)).folio().has(DescriptorFlags::HUGE)
    }

    /// Takes a slot for lanes of a width; what it holds is whatever was there. No block's lock may be held.
    pub(super) fn take_slot(&self, width: LaneWidth) -> Result<CountSlot, AllocError> {
        let gfp = Gfp { urgency: Urgency::Atomic, ..Gfp::KERNEL };
        if width == LaneWidth::Cells {
            let frame = self.alloc(gfp, CELLS)?;
            self.change(Stat::NrMapCountPages, CELLS.frames() as i64);
            return Ok(CountSlot { at: frame.addr(), width });
        }
        let class = CountSlot { at: PhysAddr(0), width }.class();
        let mut room = self.count_room.lock(self.platform);
        if room.0[class] == 0 {
            drop(room);
            let frame = self.alloc(gfp, Order::FRAME)?;
            let descriptor = self.descriptor(frame);
            descriptor.reset();
            descriptor.set_flags(DescriptorFlags::SLAB);
            self.change(Stat::NrMapCountPages, 1);
            room = self.count_room.lock(self.platform);
            self.link_room(&mut room, frame, descriptor, class);
        }
        let frame = Frame(room.0[class] - 1);
        let descriptor = self.descriptor(frame);
        let taken = descriptor.word.load(Ordering::Relaxed);
        let slot = (!taken).trailing_zeros();
        let taken = taken | 1 << slot;
        descriptor.word.store(taken, Ordering::Relaxed);
        if taken == all_of(class) {
            self.unlink_room(&mut room, descriptor, class);
        }
        drop(room);
        Ok(CountSlot { at: PhysAddr(frame.addr().0 + u64::from(slot) * bytes_of(class)), width })
    }

    /// Gives a slot back. No block's lock may be held.
    pub(super) fn give_slot(&self, slot: CountSlot) {
        let (frame, class) = (slot.at.frame(), slot.class());
        if slot.width == LaneWidth::Cells {
            return self.free_room(frame, CELLS);
        }
        let descriptor = self.descriptor(frame);
        let bit = 1 << ((slot.at.0 - frame.addr().0) / bytes_of(class));
        let mut room = self.count_room.lock(self.platform);
        let before = descriptor.word.load(Ordering::Relaxed);
        debug_assert!(before & bit != 0, "a slot of counts was given back twice");
        descriptor.word.store(before & !bit, Ordering::Relaxed);
        if before == all_of(class) {
            self.link_room(&mut room, frame, descriptor, class);
        }
        if before != bit {
            return;
        }
        self.unlink_room(&mut room, descriptor, class);
        drop(room);
        descriptor.clear_flags();
        self.free_room(frame, Order::FRAME);
    }

    fn free_room(&self, frame: Frame, order: Order) {
        self.change(Stat::NrMapCountPages, -(order.frames() as i64));
        let freed = self.free(frame, order);
        debug_assert_eq!(freed, Ok(()));
    }

    fn link_room(&self, room: &mut CountRoom, frame: Frame, descriptor: &Descriptor, class: usize) {
        let first = &mut room.0[class];
        descriptor.previous.store(0, Ordering::Relaxed);
        descriptor.next.store(*first, Ordering::Relaxed);
        if let Some(next) = self.room_at(*first) {
            next.previous.store(frame.0 + 1, Ordering::Relaxed);
        }
        *first = frame.0 + 1;
    }

    fn unlink_room(&self, room: &mut CountRoom, descriptor: &Descriptor, class: usize) {
        let (next, previous) =
            (descriptor.next.load(Ordering::Relaxed), descriptor.previous.load(Ordering::Relaxed));
        match self.room_at(previous) {
            Some(before) => before.next.store(next, Ordering::Relaxed),
            None => room.0[class] = next,
        }
        if let Some(behind) = self.room_at(next) {
            behind.previous.store(previous, Ordering::Relaxed);
        }
    }

    fn room_at(&self, link: u64) -> Option<&Descriptor> {
        link.checked_sub(1).map(|frame| self.descriptor(Frame(frame)))
    }
}
