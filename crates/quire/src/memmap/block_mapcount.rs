//! How many 4 KiB leaves map each frame of a block that is part of a folio of whole blocks.
//!
//! Usually a whole table of 4 KiB leaves maps all of a block in order. Such tables are counted in one number
//! of the block's record. All other leaves are counted in *lanes*, in a slot of memory: one bit per frame
//! while no frame is counted twice there, then a byte, then four. When faults map the pages one by one, each
//! sets a bit; when all are set, they become one table.
//!
//! The count of a frame is the sum of both. The slot stays as long as either is not zero, so that unmapping a
//! part of a table can spell that table out in lanes without allocating memory. For the same reason tables
//! and lanes of less than four bytes together never count beyond 255.
//!
//! In a pool's page the record has the bits, and a slot only if needed ([`super::record_maps`]).
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::bitmap::FrameMask;
use super::block::{Block, BlockState};
use super::lanes::{LaneError, LaneWidth, Lanes};
use super::record_maps::SlotPromises;
use crate::addr::PhysAddr;
use crate::limits::BLOCK_FRAMES;
use crate::platform::FramePlatform;

/// The largest count of a lane of one byte.
pub(super) const NARROW_MOST: u32 = 255;
/// The largest number of tables counted as such. Lanes, of four bytes by then, count further ones.
const TABLES_MOST: u32 = TABLES_MASK as u32;
/// The bits of the record's field that hold the number of tables; [`super::record_maps`] uses the bit above.
pub(super) const TABLES_MASK: u16 = 0x7fff;

/// The counts of 4 KiB leaves of one block, under its lock.
#[derive(Clone, Copy)]
pub struct SmallMaps<'a> {
    /// Tables that map all of the block.
    tables: u32,
    lanes: Option<Lanes<'a>>,
}

impl<'a> SmallMaps<'a> {
    pub(super) fn new(tables: u32, lanes: Option<Lanes<'a>>) -> Self {
        Self { tables, lanes }
    }

    /// The count of one frame.
    #[inline]
    pub fn get(self, index: usize) -> u32 {
        self.tables + self.lanes.map_or(0, |lanes| lanes.get(index))
    }

    /// Whether any frame's count is not zero.
    #[inline]
    pub fn any(self) -> bool {
        self.tables != 0 || self.lanes.is_some_and(Lanes::any)
    }

    /// The frames of a run that no leaf maps.
    pub(crate) fn unmapped(self, start: usize, count: usize) -> FrameMask {
        match count {
            1 if self.get(start) > 0 => FrameMask::EMPTY,
            1 => FrameMask::run(start, 1),
            _ => FrameMask::run(start, count).without(self.nonzero()),
        }
    }

    pub(crate) fn nonzero(self) -> FrameMask {
        if self.tables != 0 { FrameMask::ALL } else { self.lanes.map_or(FrameMask::EMPTY, Lanes::nonzero) }
    }

    /// The frames of group `group` of 64 whose count is one.
    #[inline]
    pub fn ones(self, group: usize) -> u64 {
        match (self.tables, self.lanes) {
            (0, None) => 0,
            (0, Some(lanes)) => lanes.ones(group),
            (1, None) => u64::MAX,
            (1, Some(lanes)) => !lanes.nonzero().0[group],
            _ => 0,
        }
    }

    /// All counts together.
    pub fn sum(self) -> u64 {
        (0..BLOCK_FRAMES).map(|index| u64::from(self.get(index))).sum()
    }

    /// Writes the counts to lanes that are wide enough.
    pub(super) fn copy_to(self, lanes: Lanes<'_>) {
        (0..BLOCK_FRAMES).for_each(|index| lanes.set(index, self.get(index)));
    }
}

impl Block {
    #[inline]
    pub(super) fn tables(&self) -> u32 {
        (self.table_maps().load(Ordering::Relaxed) & TABLES_MASK).into()
    }

    #[inline]
    fn set_tables(&self, tables: u32) {
        debug_assert!(tables <= TABLES_MOST);
        self.table_maps().store(tables as u16, Ordering::Relaxed);
    }

    /// Counts one more leaf for each frame of `start .. start + count`, in a block of a folio of whole
    /// blocks. Returns whether perhaps no frame of the block was counted before. A block without a slot needs
    /// `in_record` to return the promises of slots. Under the block's lock.
    ///
    /// # Errors
    /// [`LaneError::Full`]: no slot, none to promise, or a count would exceed its lane. Nothing has changed.
    #[inline]
    pub(crate) fn add_small<P: FramePlatform, S: SlotPromises>(
        &self,
        platform: &P,
        start: usize,
        count: usize,
        in_record: impl FnOnce() -> Option<S>,
    ) -> Result<bool, LaneError> {
        let Some(lanes) = self.slot_lanes(platform) else {
            let promises = in_record().ok_or(LaneError::Full)?;
            return self.add_in_record(&promises, start, count);
        };
        let tables = self.tables();
        if !has_room(tables, lanes, start, count) {
            return Err(LaneError::Full);
        }
        if count == BLOCK_FRAMES && tables < TABLES_MOST {
            self.set_tables(tables + 1);
            return Ok(tables == 0);
        }
        if let Lanes::Bits(bits) = lanes {
            let wanted = FrameMask::run(start, count);
            if bits.load().intersection(wanted).is_empty() {
                let all = bits.load().union(wanted);
                let whole = all == FrameMask::ALL && tables + 1 < NARROW_MOST;
                bits.store(if whole { FrameMask::EMPTY } else { all });
                self.set_tables(tables + u32::from(whole));
                return Ok(tables == 0);
            }
        }
        self.unpacked(platform, lanes).increment(start, count).map(|fresh| fresh && tables == 0)
    }

    /// Counts one leaf less for each frame of `start .. start + count`, and adds the frames whose count
    /// reaches zero to `zeroed`. Under the block's lock.
    ///
    /// # Errors
    /// [`LaneError::Underflow`]; nothing has changed then.
    #[inline]
    pub(crate) fn remove_small<P: FramePlatform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        start: usize,
        count: usize,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let Some(lanes) = self.slot_lanes(platform) else {
            return self.remove_in_record(platform, promises, start, count, zeroed);
        };
        let tables = self.tables();
        if count == BLOCK_FRAMES && tables > 0 {
            self.set_tables(tables - 1);
            if tables == 1 {
                *zeroed = zeroed.union(FrameMask::ALL.without(lanes.nonzero()));
            }
            return Ok(());
        }
        if let (1, 0, Lanes::Bits(bits)) = (count, tables, lanes) {
            if !bits.contains(start) {
                return Err(LaneError::Underflow);
            }
            bits.remove(start);
            zeroed.insert(start);
            return Ok(());
        }
        self.remove_from_slot(platform, lanes, FrameMask::run(start, count), zeroed)
    }

    /// As [`Self::remove_small`], for any frames.
    ///
    /// # Errors
    /// As [`Self::remove_small`].
    pub(crate) fn remove_each<P: FramePlatform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        frames: FrameMask,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        match self.slot_lanes(platform) {
            Some(lanes) => self.remove_from_slot(platform, lanes, frames, zeroed),
            None => self.remove_each_in_record(platform, promises, frames, zeroed),
        }
    }

    pub(super) fn remove_from_slot<'b, P: FramePlatform>(
        &'b self,
        platform: &P,
        mut lanes: Lanes<'b>,
        frames: FrameMask,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let mut tables = self.tables();
        let missing = frames.without(lanes.nonzero());
        if !missing.is_empty() {
            // All of one table is spelled out in lanes.
            tables = tables.checked_sub(1).ok_or(LaneError::Underflow)?;
            self.set_tables(tables);
            lanes = self.spell_out(platform, lanes)?;
        }
        let mut zero = FrameMask::EMPTY;
        lanes.decrement_each(frames, &mut zero)?;
        if tables == 0 {
            *zeroed = zeroed.union(zero);
        }
        Ok(())
    }

    /// Adds one table to the lanes of every frame.
    fn spell_out<'b, P: FramePlatform>(
        &'b self,
        platform: &P,
        lanes: Lanes<'b>,
    ) -> Result<Lanes<'b>, LaneError> {
        if let Lanes::Bits(bits) = lanes
            && bits.load().is_empty()
        {
            bits.store(FrameMask::ALL);
            return Ok(lanes);
        }
        let lanes = self.unpacked(platform, lanes);
        lanes.increment(0, BLOCK_FRAMES)?;
        Ok(lanes)
    }

    /// Converts bits to bytes in their slot, which is large enough.
    fn unpacked<'b, P: FramePlatform>(&'b self, platform: &P, lanes: Lanes<'b>) -> Lanes<'b> {
        let (Lanes::Bits(bits), Some((at, _))) = (lanes, self.lanes_at()) else { return lanes };
        let counted = bits.load();
        self.set_lanes(Some((at, LaneWidth::Narrow)));
        let lanes = self.slot_lanes(platform).unwrap_or(lanes);
        (0..BLOCK_FRAMES).for_each(|index| lanes.set(index, counted.contains(index).into()));
        lanes
    }

    /// Adds one to each cell of a run, without the block's lock. Returns whether the block has cells.
    #[cfg(feature = "published")]
    pub(crate) fn count_cells_up<P: FramePlatform>(&self, platform: &P, start: usize, count: usize) -> bool {
        self.slot_lanes(platform).is_some_and(|lanes| lanes.count_cells_up(start, count))
    }

    #[cfg(feature = "published")]
    pub(crate) fn count_cells_down<P: FramePlatform>(&self, platform: &P, start: usize, count: usize) {
        if let Some(lanes) = self.slot_lanes(platform) {
            lanes.count_cells_down(start, count);
        }
    }

    /// Whether one more leaf could be counted for every frame of the block without a change of its slot.
    pub(crate) fn has_room_for_small<P: FramePlatform>(&self, platform: &P) -> bool {
        let tables = self.tables();
        self.slot_lanes(platform).is_some_and(|lanes| has_room(tables, lanes, 0, BLOCK_FRAMES))
    }

    /// Removes the slot of a block of a folio of whole blocks if its counts are zero. Under the block's lock.
    pub(crate) fn take_unused_slot<P: FramePlatform>(&self, platform: &P) -> Option<(PhysAddr, LaneWidth)> {
        #[cfg(feature = "published")]
        if self.lanes_at()?.1 == LaneWidth::Cells {
            return None;
        }
        let unused = self.columns().is_none() && self.tables() == 0 && !self.slot_lanes(platform)?.any();
        let slot = self.lanes_at().filter(|_| unused);
        slot.inspect(|_| self.set_lanes(None))
    }

    /// Gives a block of a folio of whole blocks a slot, in place of any that it has. The slot's lanes of this
    /// width are zero. Under the block's lock.
    pub(crate) fn change_slot<P: FramePlatform>(&self, platform: &P, at: PhysAddr, width: LaneWidth) {
        let before = self.any_lanes(platform);
        self.set_lanes(Some((at, width)));
        match (before, self.slot_lanes(platform)) {
            (Some(Lanes::Bits(before)), Some(Lanes::Bits(bits))) => bits.store(before.load()),
            (Some(before), Some(lanes)) => SmallMaps::new(0, Some(before)).copy_to(lanes),
            _ => {}
        }
        if self.state() == BlockState::FolioTail {
            self.forget_bits();
        }
    }
}

/// Whether each frame of a run can be counted once more, with every table spelled out in lanes.
#[inline]
fn has_room(tables: u32, lanes: Lanes<'_>, start: usize, count: usize) -> bool {
    match lanes {
        Lanes::Wide(_) => true,
        Lanes::Bits(_) => tables + 1 < NARROW_MOST,
        #[cfg(feature = "published")]
        Lanes::Cells(_) => true,
        Lanes::Narrow(_) if tables == 0 && count < BLOCK_FRAMES => true,
        Lanes::Narrow(_) => (start..start + count).all(|index| lanes.get(index) + tables < NARROW_MOST),
    }
}
