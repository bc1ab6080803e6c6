//! Takes, gives back and promises slots for map counts; `mapcount/slot_frames.rs` allocates their memory.
#![forbid(unsafe_code)]

use core::cell::Cell;
use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order, PhysAddr};
#[cfg(feature = "published")]
use crate::memmap::LaneWidth;
use crate::memmap::{Descriptor, SlotPromises};
use crate::page_alloc::request::gfp::Contents;
use crate::page_alloc::store::Store;
#[cfg(feature = "published")]
use crate::page_alloc::store::slots::CELLS;
use crate::page_alloc::store::slots::{CountRoom, CountSlot, EMPTY, PER_FRAME, all_of, bytes_of};
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::SpinGuard;

impl<P: FramePlatform> Store<'_, P> {
    /// Takes a free slot; there must be one.
    pub(in crate::page_alloc) fn take_free(&self, room: &mut CountRoom, class: usize) -> PhysAddr {
        let list = if class == 0 && room.first[class] == 0 { EMPTY } else { class };
        debug_assert!(room.first[list] != 0, "a slot of counts was promised twice");
        let frame = Frame(room.first[list] - 1);
        let descriptor = self.frames.descriptor(frame);
        let before = descriptor.word.load(Ordering::Relaxed);
        let slot = (!before).trailing_zeros();
        let taken = before | 1 << slot;
        descriptor.word.store(taken, Ordering::Relaxed);
        if list == EMPTY || taken == all_of(class) {
            self.unlink_room(room, descriptor, list);
        }
        if list == EMPTY {
            self.link_room(room, frame, descriptor, class);
        }
        PhysAddr(frame.addr().0 + u64::from(slot) * bytes_of(class))
    }

    /// No block's lock may be held.
    pub(in crate::page_alloc) fn give_slot(&self, slot: CountSlot) {
        let (frame, class) = (slot.at.frame(), slot.class());
        #[cfg(feature = "published")]
        if slot.width == LaneWidth::Cells {
            return self.free_room(frame, CELLS);
        }
        let descriptor = self.frames.descriptor(frame);
        let bit = 1 << ((slot.at.0 - frame.addr().0) / bytes_of(class));
        let mut room = self.count_room.lock(self.frames.platform);
        let before = descriptor.word.load(Ordering::Relaxed);
        debug_assert!(before & bit != 0, "a slot of counts was given back twice");
        descriptor.word.store(before & !bit, Ordering::Relaxed);
        if before == all_of(class) {
            self.link_room(&mut room, frame, descriptor, class);
        }
        if class == 0 {
            room.spare += 1;
        }
        if before != bit {
            let excess = room.has_excess();
            drop(room);
            return if excess {
                self.trim_room()
            };
        }
        self.unlink_room(&mut room, descriptor, class);
        if class == 0 {
            self.link_room(&mut room, frame, descriptor, EMPTY);
            drop(room);
            return self.trim_room();
        }
        drop(room);
        descriptor.clear_flags();
        self.free_room(frame, Order::FRAME);
    }

    /// Frees frames of the small size without taken slots that no promise needs. No block's lock may be held.
    pub(in crate::page_alloc) fn trim_room(&self) {
        loop {
            let mut room = self.count_room.lock(self.frames.platform);
            if !room.has_excess() {
                return;
            }
            let frame = Frame(room.first[EMPTY] - 1);
            let descriptor = self.frames.descriptor(frame);
            self.unlink_room(&mut room, descriptor, EMPTY);
            room.spare -= PER_FRAME;
            room.frames -= 1;
            drop(room);
            descriptor.clear_flags();
            self.free_room(frame, Order::FRAME);
        }
    }

    fn free_room(&self, frame: Frame, order: Order) {
        self.frames.change(Stat::NrMapCountPages, -(order.frames() as i64));
        let freed = self.frames.interrupts_guarded(|| self.store_free(frame, order, Contents::Unknown));
        debug_assert_eq!(freed, Ok(()));
        self.frames.count(Stat::Pgfree, order.frames());
    }

    pub(in crate::page_alloc) fn link_room(
        &self,
        room: &mut CountRoom,
        frame: Frame,
        descriptor: &Descriptor,
        list: usize,
    ) {
        let first = &mut room.first[list];
        descriptor.previous.store(0, Ordering::Relaxed);
        descriptor.next.store(*first, Ordering::Relaxed);
        if let Some(next) = self.room_at(*first) {
            next.previous.store(frame.0 + 1, Ordering::Relaxed);
        }
        *first = frame.0 + 1;
    }

    fn unlink_room(&self, room: &mut CountRoom, descriptor: &Descriptor, list: usize) {
        let (next, previous) =
            (descriptor.next.load(Ordering::Relaxed), descriptor.previous.load(Ordering::Relaxed));
        match self.room_at(previous) {
            Some(before) => before.next.store(next, Ordering::Relaxed),
            None => room.first[list] = next,
        }
        if let Some(behind) = self.room_at(next) {
            behind.previous.store(previous, Ordering::Relaxed);
        }
    }

    fn room_at(&self, link: u64) -> Option<&Descriptor> {
        link.checked_sub(1).map(|frame| self.frames.descriptor(Frame(frame)))
    }
}

/// Makes and keeps promises of slots, under a block's lock.
pub(in crate::page_alloc) struct Promises<'a, 'p, P: FramePlatform> {
    store: &'a Store<'p, P>,
    /// Whether a frame of slots could be freed, once that lock is given back.
    pub(in crate::page_alloc) excess: Cell<bool>,
}

impl<'a, 'p, P: FramePlatform> Promises<'a, 'p, P> {
    pub(in crate::page_alloc) fn new(store: &'a Store<'p, P>) -> Self {
        Self { store, excess: Cell::new(false) }
    }

    fn room(&self) -> SpinGuard<'a, CountRoom, P> {
        self.store.count_room.lock(self.store.frames.platform)
    }
}

impl<P: FramePlatform> SlotPromises for Promises<'_, '_, P> {
    fn promise(&self) -> bool {
        let mut room = self.room();
        let any = room.spare > 0;
        room.spare -= u64::from(any);
        any
    }

    fn release(&self) {
        let mut room = self.room();
        room.spare += 1;
        self.excess.set(self.excess.get() || room.has_excess());
    }

    fn redeem(&self) -> PhysAddr {
        self.store.take_free(&mut self.room(), 0)
    }
}
