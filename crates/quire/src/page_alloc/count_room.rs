//! Slots of memory for the map counts of folios of whole blocks that are mapped in pieces.
//!
//! A slot holds lanes of a byte, or bits, for one block (512 bytes), or lanes of four bytes (2 KiB): 0.024 % or 0.098 % of
//! what they count. Slots of a size share frames of order 0. The frame's descriptor says which of its slots are taken, and links it
//! with others of which some are free. A frame without slots goes back at once, so what is mapped whole costs nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::gfp::{Gfp, Urgency};
use crate::addr::{Frame, Order, PhysAddr};
use crate::error::AllocError;
use crate::limits::FRAME_SIZE;
use crate::memmap::{Descriptor, DescriptorFlags, LaneWidth, Lanes};
use crate::platform::Platform;
use crate::stats::Stat;

/// Room for the counts of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CountSlot {
    pub(super) at: PhysAddr,
    /// Whether it is one for lanes of four bytes.
    pub(super) wide: bool,
}

/// The first frame, as its number plus one, of those of each size of which some slots are free.
#[derive(Default)]
pub(super) struct CountRoom([u64; 2]);

impl CountSlot {
    /// The slot that a record names.
    pub(super) fn of((at, width): (PhysAddr, LaneWidth)) -> Self {
        Self { at, wide: width == LaneWidth::Wide }
    }

    const fn bytes(wide: bool) -> u64 {
        (if wide { Lanes::WIDE_BYTES } else { Lanes::NARROW_BYTES }) as u64
    }

    /// The bit of each slot of a frame.
    const fn all(wide: bool) -> u64 {
        (1 << (FRAME_SIZE / Self::bytes(wide))) - 1
    }
}

impl<P: Platform> PageAllocator<'_, P> {
    /// Takes a slot; what it holds is whatever was there. No block's lock may be held.
    pub(super) fn take_slot(&self, wide: bool) -> Result<CountSlot, AllocError> {
        let mut room = self.count_room.lock(self.platform);
        if room.0[usize::from(wide)] == 0 {
            drop(room);
            let gfp = Gfp { urgency: Urgency::Atomic, ..Gfp::KERNEL };
            let frame = self.alloc(gfp, Order::FRAME)?;
            let descriptor = self.descriptor(frame);
            descriptor.reset();
            descriptor.set_flags(DescriptorFlags::SLAB);
            self.change(Stat::NrMapCountPages, 1);
            room = self.count_room.lock(self.platform);
            self.link_room(&mut room, frame, descriptor, wide);
        }
        let frame = Frame(room.0[usize::from(wide)] - 1);
        let descriptor = self.descriptor(frame);
        let taken = descriptor.word.load(Ordering::Relaxed);
        let slot = (!taken).trailing_zeros();
        let taken = taken | 1 << slot;
        descriptor.word.store(taken, Ordering::Relaxed);
        if taken == CountSlot::all(wide) {
            self.unlink_room(&mut room, descriptor, wide);
        }
        drop(room);
        Ok(CountSlot { at: PhysAddr(frame.addr().0 + u64::from(slot) * CountSlot::bytes(wide)), wide })
    }

    /// Gives a slot back. No block's lock may be held.
    pub(super) fn give_slot(&self, slot: CountSlot) {
        let frame = slot.at.frame();
        let descriptor = self.descriptor(frame);
        let bit = 1 << ((slot.at.0 - frame.addr().0) / CountSlot::bytes(slot.wide));
        let mut room = self.count_room.lock(self.platform);
        let before = descriptor.word.load(Ordering::Relaxed);
        debug_assert!(before & bit != 0, "a slot of counts was given back twice");
        descriptor.word.store(before & !bit, Ordering::Relaxed);
        if before == CountSlot::all(slot.wide) {
            self.link_room(&mut room, frame, descriptor, slot.wide);
        }
        if before != bit {
            return;
        }
        self.unlink_room(&mut room, descriptor, slot.wide);
        drop(room);
        descriptor.clear_flags();
        self.change(Stat::NrMapCountPages, -1);
        let freed = self.free(frame, Order::FRAME);
        debug_assert_eq!(freed, Ok(()));
    }

    fn link_room(&self, room: &mut CountRoom, frame: Frame, descriptor: &Descriptor, wide: bool) {
        let first = &mut room.0[usize::from(wide)];
        descriptor.previous.store(0, Ordering::Relaxed);
        descriptor.next.store(*first, Ordering::Relaxed);
        if let Some(next) = self.room_at(*first) {
            next.previous.store(frame.0 + 1, Ordering::Relaxed);
        }
        *first = frame.0 + 1;
    }

    fn unlink_room(&self, room: &mut CountRoom, descriptor: &Descriptor, wide: bool) {
        let (next, previous) =
            (descriptor.next.load(Ordering::Relaxed), descriptor.previous.load(Ordering::Relaxed));
        match self.room_at(previous) {
            Some(before) => before.next.store(next, Ordering::Relaxed),
            None => room.0[usize::from(wide)] = next,
        }
        if let Some(behind) = self.room_at(next) {
            behind.previous.store(previous, Ordering::Relaxed);
        }
    }

    fn room_at(&self, link: u64) -> Option<&Descriptor> {
        link.checked_sub(1).map(|frame| self.descriptor(Frame(frame)))
    }
}
