//! Slots of memory for the map counts of folios of whole blocks that are mapped in pieces.
//!
//! A slot holds lanes of a byte, or bits, for one block (512 bytes), or lanes of four bytes (2 KiB): 0.024 % or 0.098 % of
//! what they count. Slots of a size share frames of order 0. The frame's descriptor says which of its slots are taken, and links it
//! with others of which some are free. A frame in which no slot is taken, and that no promise needs, goes back at once, save that
//! as many slots as one frame has are kept free as long as some are taken or promised. So what is mapped whole costs
//! nothing, and mapping and unmapping beside others does not allocate a frame each time.
//!
//! Slots of a pool's pages are promised before they are needed ([`crate::memmap::SlotPromises`]). A promise is a number: so many free
//! slots of the small size are not for others, whichever they are, and as many frames stay. Making and keeping one needs no
//! memory, so it goes under a block's lock; frames come and go without.
#![forbid(unsafe_code)]

use crate::page_alloc::mapcount::slots::CountRoom;
use crate::page_alloc::mapcount::slots::CountSlot;
use crate::page_alloc::mapcount::slots::EMPTY;
use crate::page_alloc::mapcount::slots::PER_FRAME;
use crate::page_alloc::mapcount::slots::all_of;
use crate::page_alloc::mapcount::slots::bytes_of;
use core::cell::Cell;
use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order, PhysAddr};
use crate::error::AllocError;
use crate::memmap::{
    Block, BlockState, Descriptor, DescriptorFlags, FrameState, LaneWidth, Lanes, RecordNeed, SlotPromises,
};
use crate::page_alloc::allocator::PageAllocator;
#[cfg(feature = "published")]
use crate::page_alloc::mapcount::scheme::CountScheme;
use crate::page_alloc::mapcount::state::head_of;
use crate::page_alloc::request::gfp::{Gfp, Urgency};
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::SpinGuard;

/// The most frames that are added at once.
const ROOM_STEP: u64 = 16;

/// How room is asked for.
const ROOM: Gfp = Gfp { urgency: Urgency::Atomic, ..Gfp::KERNEL };

/// A folio for the cells of one block.
const CELLS: Order = match Order::new(3) {
    Some(order) => order,
    None => Order::FRAME,
};

const _: () = assert!(CELLS.bytes() == Lanes::bytes(LaneWidth::Cells) as u64);

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Sees to it that one more 4 KiB leaf can be counted for every frame of the block of `frame`: gives a block of a folio of
    /// whole blocks a slot for its lanes, and widens lanes of which one is full. May allocate, so not under a page-table lock.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub fn prepare_counts(&self, frame: Frame) -> Result<(), AllocError> {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        let before = block.lanes_at();
        let need = match block.area() {
            Some(area) => {
                block.widen_area(area);
                RecordNeed::Nothing
            }
            None if block.has_room_for_small(self.platform) => RecordNeed::Nothing,
            None if before.is_none() && self.counts_in_record(frame, block) => block.record_need(),
            None => RecordNeed::Slot,
        };
        block.unlock(self.platform);
        match need {
            RecordNeed::Nothing => return Ok(()),
            RecordNeed::Promise => return self.make_spare(),
            RecordNeed::Slot => {}
        }
        let width = if before.is_none() { LaneWidth::Bits } else { LaneWidth::Wide };
        #[cfg(feature = "published")]
        let width = if self.scheme == CountScheme::PerFrame { LaneWidth::Cells } else { width };
        let slot = self.take_slot(width)?;
        self.zero(slot.at, Lanes::bytes(slot.width));
        block.lock(self.platform);
        // It may have been split meanwhile, or another task was faster.
        let folio = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let mut promised = false;
        let unused = if folio && block.lanes_at() == before {
            promised = block.has_promise();
            block.change_slot(self.platform, slot.at, slot.width);
            FrameState::UNKNOWN.put(block.folio_state_cell());
            before.map(CountSlot::of)
        } else {
            Some(slot)
        };
        block.unlock(self.platform);
        if promised {
            self.count_room.lock(self.platform).spare += 1;
        }
        if let Some(slot) = unused {
            self.give_slot(slot);
        }
        self.trim_room();
        Ok(())
    }

    /// Sees to it that one more slot can be promised. Adds an eighth to what there is, since a task that copies the
    /// tables of a page needs many, and comes back for each of these.
    fn make_spare(&self) -> Result<(), AllocError> {
        let room = self.count_room.lock(self.platform);
        let (enough, frames) = (room.spare > 0, room.frames);
        drop(room);
        if enough {
            return Ok(());
        }
        drop(self.add_room(0)?);
        let more = (frames / 8).min(ROOM_STEP - 1);
        // Without memory for more there is enough.
        let _ = (0..more).try_for_each(|_| self.add_room(0).map(drop));
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
        self.trim_room();
    }

    /// Whether counts of a block of a folio of whole blocks may stand in its record: in pages of a pool, which are
    /// not split while they are mapped.
    pub(in crate::page_alloc) fn counts_in_record(&self, frame: Frame, block: &Block) -> bool {
        let order = block.order.load(Ordering::Relaxed);
        self.scheme.is_dense()
            && block.state() == BlockState::FolioTail
            && self.memmap.block(head_of(frame.block(), order)).folio().has(DescriptorFlags::HUGE)
    }

    /// Takes a slot for lanes of a width; what it holds is whatever was there. No block's lock may be held.
    pub(in crate::page_alloc) fn take_slot(&self, width: LaneWidth) -> Result<CountSlot, AllocError> {
        if width == LaneWidth::Cells {
            let frame = self.alloc(ROOM, CELLS)?.into_raw();
            self.change(Stat::NrMapCountPages, CELLS.frames() as i64);
            return Ok(CountSlot { at: frame.addr(), width });
        }
        let class = CountSlot { at: PhysAddr(0), width }.class();
        let mut room = self.count_room.lock(self.platform);
        let free = if class == 0 { room.spare } else { room.first[class] };
        if free == 0 {
            drop(room);
            room = self.add_room(class)?;
        }
        if class == 0 {
            room.spare -= 1;
        }
        Ok(CountSlot { at: self.take_free(&mut room, class), width })
    }

    /// Adds a frame of free slots; what others have taken of it is not known once the lock is given back.
    fn add_room(&self, class: usize) -> Result<SpinGuard<'_, CountRoom, P>, AllocError> {
        let frame = self.alloc(ROOM, Order::FRAME)?.into_raw();
        let descriptor = self.descriptor(frame);
        descriptor.reset();
        descriptor.set_flags(DescriptorFlags::SLAB);
        self.change(Stat::NrMapCountPages, 1);
        let mut room = self.count_room.lock(self.platform);
        self.link_room(&mut room, frame, descriptor, if class == 0 { EMPTY } else { class });
        if class == 0 {
            room.spare += PER_FRAME;
            room.frames += 1;
        }
        Ok(room)
    }

    /// Takes one of the free slots, of which there is one.
    fn take_free(&self, room: &mut CountRoom, class: usize) -> PhysAddr {
        let list = if class == 0 && room.first[class] == 0 { EMPTY } else { class };
        debug_assert!(room.first[list] != 0, "a slot of counts was promised twice");
        let frame = Frame(room.first[list] - 1);
        let descriptor = self.descriptor(frame);
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

    /// Gives a slot back. No block's lock may be held.
    pub(in crate::page_alloc) fn give_slot(&self, slot: CountSlot) {
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

    /// Gives back frames of the small size that nothing is in, as long as what is promised does not need them. No block's lock may
    /// be held.
    pub(in crate::page_alloc) fn trim_room(&self) {
        loop {
            let mut room = self.count_room.lock(self.platform);
            if !room.has_excess() {
                return;
            }
            let frame = Frame(room.first[EMPTY] - 1);
            let descriptor = self.descriptor(frame);
            self.unlink_room(&mut room, descriptor, EMPTY);
            room.spare -= PER_FRAME;
            room.frames -= 1;
            drop(room);
            descriptor.clear_flags();
            self.free_room(frame, Order::FRAME);
        }
    }

    fn free_room(&self, frame: Frame, order: Order) {
        self.change(Stat::NrMapCountPages, -(order.frames() as i64));
        let freed = self.free(self.folio(frame, order));
        debug_assert_eq!(freed, Ok(()));
    }

    fn link_room(&self, room: &mut CountRoom, frame: Frame, descriptor: &Descriptor, list: usize) {
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
        link.checked_sub(1).map(|frame| self.descriptor(Frame(frame)))
    }
}

/// Makes and keeps promises, under a block's lock.
pub(in crate::page_alloc) struct Promises<'a, 'p, P: FramePlatform> {
    allocator: &'a PageAllocator<'p, P>,
    /// Whether a frame of slots could go back, once that lock is given back.
    pub(in crate::page_alloc) excess: Cell<bool>,
}

impl<'a, 'p, P: FramePlatform> Promises<'a, 'p, P> {
    pub(in crate::page_alloc) fn new(allocator: &'a PageAllocator<'p, P>) -> Self {
        Self { allocator, excess: Cell::new(false) }
    }

    fn room(&self) -> SpinGuard<'a, CountRoom, P> {
        self.allocator.count_room.lock(self.allocator.platform)
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
        self.allocator.take_free(&mut self.room(), 0)
    }
}
