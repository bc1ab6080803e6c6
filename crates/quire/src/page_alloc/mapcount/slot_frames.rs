//! Slots of memory for the map counts of folios of whole blocks that are mapped in pieces.
//!
//! A slot holds the lanes of one block: bits or bytes (512 bytes), or four bytes each (2 KiB); 0.024 % or
//! 0.098 % of the counted memory. Slots of one size share frames of order 0. The frame's descriptor says
//! which of its slots are taken, and links it with other frames that have free slots. A frame without taken
//! slots that no promise needs is freed at once, except that one frame's worth of slots stays free while any
//! is taken or promised. So folios mapped whole cost nothing, and not every map allocates.
//!
//! Slots for a pool's pages are promised before they are needed ([`crate::memmap::SlotPromises`]). A promise
//! is a number: that many free slots of the small size, whichever they are, stay free, and their frames stay.
//! Making or keeping one needs no memory, so it happens under a block's lock; frames come and go without.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, PhysAddr};
use crate::error::AllocError;
use crate::memmap::{Block, BlockState, DescriptorFlags, FrameState, LaneWidth, Lanes, RecordNeed};
#[cfg(feature = "published")]
use crate::page_alloc::frames::scheme::CountScheme;
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::mapcount::MapCounts;
use crate::page_alloc::request::gfp::{Gfp, Urgency};
#[cfg(feature = "published")]
use crate::page_alloc::store::slots::CELLS;
use crate::page_alloc::store::slots::{CountRoom, CountSlot, EMPTY, PER_FRAME};
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::SpinGuard;

/// Frames that one call adds, at most.
const ROOM_STEP: u64 = 16;

const ROOM: Gfp = Gfp { urgency: Urgency::Tables, ..Gfp::KERNEL };

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Makes sure that one more 4 KiB leaf can be counted for every frame of the block of `frame`: widens
    /// full lanes in a slot, or gives a block of a folio of whole blocks a slot. May allocate, so the caller
    /// holds no page-table lock.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub fn prepare_counts(&self, frame: Frame) -> Result<(), AllocError> {
        let block = self.frames().memmap.block(frame.block());
        block.lock(self.platform());
        let (before, pieces) = (block.lanes_at(), block.columns().is_some());
        let need = match block.columns() {
            Some(_) if block.has_full_count() => RecordNeed::Slot,
            Some(_) => RecordNeed::Nothing,
            None if block.has_room_for_small(self.platform()) => RecordNeed::Nothing,
            None if before.is_none() && self.counts_in_record(frame, block) => block.record_need(),
            None => RecordNeed::Slot,
        };
        block.unlock(self.platform());
        match need {
            RecordNeed::Nothing => return Ok(()),
            RecordNeed::Promise => return self.make_spare(),
            RecordNeed::Slot => {}
        }
        let width = if before.is_none() && !pieces { LaneWidth::Bits } else { LaneWidth::Wide };
        #[cfg(feature = "published")]
        let cells = self.frames().scheme == CountScheme::PerFrame && !pieces;
        #[cfg(feature = "published")]
        let width = if cells { LaneWidth::Cells } else { width };
        self.change_slot(block, before, width)
    }

    /// Makes sure that any number of 4 KiB leaves can be counted for every frame of a block that has a slot,
    /// as long as it keeps the slot: while one is counted there. May allocate.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub(crate) fn widen_counts(&self, frame: Frame) -> Result<(), AllocError> {
        let block = self.frames().memmap.block(frame.block());
        loop {
            block.lock(self.platform());
            let before = block.lanes_at();
            block.unlock(self.platform());
            match before {
                Some((_, LaneWidth::Bits | LaneWidth::Narrow)) => {
                    self.change_slot(block, before, LaneWidth::Wide)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Gives a block a slot of this width, unless another task has given it one since `before`.
    fn change_slot(
        &self,
        block: &Block,
        before: Option<(PhysAddr, LaneWidth)>,
        width: LaneWidth,
    ) -> Result<(), AllocError> {
        let pieces = block.columns().is_some();
        let slot = self.take_slot(width)?;
        // SAFETY: M4: the slot was just taken, and no record names it yet.
        unsafe { self.frames().zero(slot.at, Lanes::bytes(slot.width)) };
        block.lock(self.platform());
        // The folio may have been split meanwhile, or another task may have given the block a slot.
        let full = pieces && block.has_full_count();
        let folio = matches!(block.state(), BlockState::Folio | BlockState::FolioTail);
        let mut promised = false;
        let unused = if full {
            block.widen(self.platform(), slot.at);
            None
        } else if !pieces && folio && block.lanes_at() == before {
            promised = block.has_promise();
            block.change_slot(self.platform(), slot.at, slot.width);
            FrameState::UNKNOWN.put(block.folio_state_cell());
            before.map(CountSlot::of)
        } else {
            Some(slot)
        };
        block.unlock(self.platform());
        if promised {
            self.store().count_room.lock(self.platform()).spare += 1;
        }
        if let Some(slot) = unused {
            self.store().give_slot(slot);
        }
        self.store().trim_room();
        Ok(())
    }

    /// Makes sure that one more slot can be promised. It adds an eighth to what there is: a task that copies
    /// the tables of a page needs many slots, and calls this for each.
    fn make_spare(&self) -> Result<(), AllocError> {
        let room = self.store().count_room.lock(self.platform());
        let (enough, frames) = (room.spare > 0, room.frames);
        drop(room);
        if enough {
            return Ok(());
        }
        drop(self.add_room(0)?);
        let more = (frames / 8).min(ROOM_STEP - 1);
        // One frame is enough if there is no memory for more.
        let _ = (0..more).try_for_each(|_| self.add_room(0).map(drop));
        Ok(())
    }

    /// Gives the slot of a block of a folio of whole blocks back, if nothing is counted in it.
    pub fn forget_counts(&self, frame: Frame) {
        let block = self.frames().memmap.block(frame.block());
        block.lock(self.platform());
        let slot = block.take_unused_slot(self.platform()).map(CountSlot::of);
        block.unlock(self.platform());
        if let Some(slot) = slot {
            self.store().give_slot(slot);
        }
        self.store().trim_room();
    }

    /// Whether the counts of a block of a folio of whole blocks may stand in its record. They may in a pool's
    /// pages, which are not split while they are mapped.
    pub(in crate::page_alloc) fn counts_in_record(&self, frame: Frame, block: &Block) -> bool {
        self.frames().scheme.is_dense() && self.is_part_of_huge(frame, block)
    }

    /// Whether the block is a part, not the first, of a pool's page.
    pub(in crate::page_alloc) fn is_part_of_huge(&self, frame: Frame, block: &Block) -> bool {
        let head = || self.frames().memmap.block(head_of(frame.block(), block.order.load(Ordering::Relaxed)));
        // The head of a part that is being split off has no descriptor yet.
        let is_huge =
            |head: &Block| head.state() == BlockState::Folio && head.folio().has(DescriptorFlags::HUGE);
        block.state() == BlockState::FolioTail && is_huge(head())
    }

    /// Takes a slot for lanes of a width; its bytes are arbitrary. No block's lock may be held.
    pub(in crate::page_alloc) fn take_slot(&self, width: LaneWidth) -> Result<CountSlot, AllocError> {
        #[cfg(feature = "published")]
        if width == LaneWidth::Cells {
            let frame = self.requests.alloc(ROOM, CELLS)?.into_raw();
            self.frames().change(Stat::NrMapCountPages, CELLS.frames() as i64);
            return Ok(CountSlot { at: frame.addr(), width });
        }
        let class = CountSlot { at: PhysAddr(0), width }.class();
        let mut room = self.store().count_room.lock(self.platform());
        let free = if class == 0 { room.spare } else { room.first[class] };
        if free == 0 {
            drop(room);
            room = self.add_room(class)?;
        }
        if class == 0 {
            room.spare -= 1;
        }
        Ok(CountSlot { at: self.store().take_free(&mut room, class), width })
    }

    /// Adds a frame of free slots, and returns the lock: once it is given back, other CPUs may take them.
    fn add_room(&self, class: usize) -> Result<SpinGuard<'_, CountRoom, P>, AllocError> {
        let frame = self.requests.alloc_described(ROOM)?.0.into_raw();
        let descriptor = self.frames().descriptor(frame);
        descriptor.reset();
        descriptor.set_flags(DescriptorFlags::SLAB);
        self.frames().change(Stat::NrMapCountPages, 1);
        let mut room = self.store().count_room.lock(self.platform());
        self.store().link_room(&mut room, frame, descriptor, if class == 0 { EMPTY } else { class });
        if class == 0 {
            room.spare += PER_FRAME;
            room.frames += 1;
        }
        Ok(room)
    }
}
