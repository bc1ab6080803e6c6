//! Map counts of a block inside a page of a pool, kept in the block's record.
//!
//! The record of every block but a page's first has 64 bytes free, where the first one has its folio's
//! descriptor: a bit for each frame. Together with the number of tables that map all of the block, the bits
//! count any number of whole tables, and parts that do not overlap. When a part of a table is unmapped, its
//! rest becomes bits. Only when a second table loses a part, the block needs a slot.
//!
//! Code that unmaps cannot allocate. So the block has a *promise* of a slot as long as it may need one: while
//! the number of tables, and the bits as one of them, is two or more. The counts say whether it has one.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::bitmap::FrameMask;
use super::block::{Block, BlockState};
use super::block_mapcount::{NARROW_MOST, TABLES_MASK};
use super::lanes::{LaneError, LaneWidth, Lanes};
use crate::addr::PhysAddr;
use crate::limits::BLOCK_FRAMES;
use crate::platform::FramePlatform;

/// Reserved slots for blocks that may need one where memory cannot be allocated.
pub(crate) trait SlotPromises {
    /// Reserves one more slot. Returns whether one was left.
    fn promise(&self) -> bool;
    /// Cancels one promise.
    fn release(&self);
    /// Takes a promised slot, whose contents are arbitrary.
    fn redeem(&self) -> PhysAddr;
}

/// What a block needs to count one more table in its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordNeed {
    /// Nothing, whatever run is mapped of an empty block, or the next table.
    Nothing,
    /// The next table needs a promise.
    Promise,
    /// The next leaves may need lanes.
    Slot,
}

/// How many tables map all of a block, and whether bits count anything else, in one word: mapping and
/// unmapping whole tables reads nothing else.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Record(u16);

impl Record {
    const BITS: u16 = TABLES_MASK + 1;

    fn new(tables: u32, bits: bool) -> Self {
        Self(tables as u16 | if bits { Self::BITS } else { 0 })
    }

    #[inline]
    fn tables(self) -> u32 {
        (self.0 & TABLES_MASK).into()
    }

    #[inline]
    fn has_bits(self) -> bool {
        self.0 & Self::BITS != 0
    }

    /// Whether a slot is promised: each table, and the bits, may need lanes, and the record has room for one.
    #[inline]
    fn is_promised(self) -> bool {
        self.tables() + u32::from(self.has_bits()) >= 2
    }
}

impl Block {
    #[inline]
    fn record(&self) -> Record {
        Record(self.table_maps().load(Ordering::Relaxed))
    }

    #[inline]
    fn set_record(&self, record: Record) {
        self.table_maps().store(record.0, Ordering::Relaxed);
    }

    /// Stores a larger count, which may need a promise.
    #[inline]
    fn grow_record(
        &self,
        promises: &impl SlotPromises,
        before: Record,
        after: Record,
    ) -> Result<(), LaneError> {
        if after.is_promised() && !before.is_promised() && !promises.promise() {
            return Err(LaneError::Full);
        }
        self.set_record(after);
        Ok(())
    }

    /// Stores a smaller count, which may cancel a promise.
    #[inline]
    fn shrink_record(&self, promises: &impl SlotPromises, before: Record, after: Record) {
        self.set_record(after);
        if before.is_promised() && !after.is_promised() {
            promises.release();
        }
    }

    /// Whether a block of a folio of whole blocks has no slot but a promise of one. Under its lock.
    pub(crate) fn has_promise(&self) -> bool {
        self.lanes_at().is_none() && self.record().is_promised()
    }

    /// What a block whose counts are in its record needs for one more table. Under its lock.
    pub(crate) fn record_need(&self) -> RecordNeed {
        let record = self.record();
        match record.tables() {
            _ if record.has_bits() => RecordNeed::Slot,
            1 => RecordNeed::Promise,
            tables if tables + 1 < NARROW_MOST => RecordNeed::Nothing,
            _ => RecordNeed::Slot,
        }
    }

    /// The bits were copied to a slot.
    pub(super) fn forget_bits(&self) {
        self.set_record(Record::new(self.record().tables(), false));
        self.heads.store(FrameMask::EMPTY);
    }

    /// Counts one more leaf for each frame of a run. Returns whether perhaps no frame was counted before.
    #[inline]
    pub(super) fn add_in_record(
        &self,
        promises: &impl SlotPromises,
        start: usize,
        count: usize,
    ) -> Result<bool, LaneError> {
        let before = self.record();
        let tables = before.tables();
        if tables + 1 >= NARROW_MOST {
            return Err(LaneError::Full);
        }
        if count == BLOCK_FRAMES {
            self.grow_record(promises, before, Record::new(tables + 1, before.has_bits()))?;
            return Ok(tables == 0);
        }
        if before.has_bits() && self.heads.meets_run(start, count) {
            return Err(LaneError::Full);
        }
        self.grow_record(promises, before, Record::new(tables, true))?;
        self.heads.insert_run(start, count);
        let full = |word: usize| self.heads.word(word) == u64::MAX;
        // Usually the word just changed is not full, and the others need not be read.
        if full(start / 64) && (0..BLOCK_FRAMES / 64).all(full) {
            self.heads.store(FrameMask::EMPTY);
            self.set_record(Record::new(tables + 1, false));
        }
        Ok(tables == 0)
    }

    /// Counts one more leaf of one frame, if other pieces are counted in bits or bytes and that is one store.
    /// Returns whether it was. `of_pool`: whether the block is of a pool's page. Under its lock.
    #[inline]
    pub(crate) fn add_piece<P: FramePlatform>(
        &self,
        platform: &P,
        index: usize,
        of_pool: impl FnOnce() -> bool,
    ) -> bool {
        match self.slot_lanes(platform) {
            None => {
                let (word, bit) = (index / 64, 1 << (index % 64));
                let bits = self.heads.word(word);
                // Only pages of pools have bits. A full word may complete a table.
                let one_store = self.record().has_bits() && bits & bit == 0 && bits | bit != u64::MAX;
                if one_store {
                    self.heads.set_word(word, bits | bit);
                }
                one_store
            }
            Some(lanes @ Lanes::Narrow(_)) if self.record().tables() == 0 && of_pool() => {
                lanes.increment(index, 1).is_ok()
            }
            Some(_) => false,
        }
    }

    /// Counts one leaf less for each frame of a run.
    #[inline]
    pub(super) fn remove_in_record<P: FramePlatform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        start: usize,
        count: usize,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let before = self.record();
        if before.tables() == 0
            && self.state() == BlockState::FolioTail
            && self.heads.contains_run(start, count)
        {
            self.heads.remove_run(start, count);
            let empty = |word: usize| self.heads.word(word) == 0;
            if empty(start / 64) && (0..BLOCK_FRAMES / 64).all(empty) {
                self.set_record(Record::new(0, false));
            }
            *zeroed = zeroed.union(FrameMask::run(start, count));
            return Ok(());
        }
        self.remove_each_in_record(platform, promises, FrameMask::run(start, count), zeroed)
    }

    /// Counts one table less, if the record counts any; returns whether it does.
    #[inline]
    pub(crate) fn remove_table(&self, promises: &impl SlotPromises) -> bool {
        let before = self.record();
        let counted =
            self.state() == BlockState::FolioTail && self.lanes_at().is_none() && before.tables() > 0;
        if counted {
            self.shrink_record(promises, before, Record::new(before.tables() - 1, before.has_bits()));
        }
        counted
    }

    /// Counts one leaf less for each of these frames.
    pub(super) fn remove_each_in_record<P: FramePlatform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        frames: FrameMask,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let (before, bits) = (self.record(), self.heads.load());
        let in_bits = frames.without(bits).is_empty();
        if self.state() != BlockState::FolioTail || before.tables() == 0 && !in_bits {
            return Err(LaneError::Underflow);
        }
        if !in_bits && before.has_bits() {
            self.change_slot(platform, promises.redeem(), LaneWidth::Bits);
            let lanes = self.slot_lanes(platform).ok_or(LaneError::Underflow)?;
            return self.remove_from_slot(platform, lanes, frames, zeroed);
        }
        // Without bits, one table becomes bits.
        let (left, rest) =
            if in_bits { (before.tables(), bits) } else { (before.tables() - 1, FrameMask::ALL) };
        let rest = rest.without(frames);
        self.heads.store(rest);
        self.shrink_record(promises, before, Record::new(left, !rest.is_empty()));
        if left == 0 {
            *zeroed = zeroed.union(frames);
        }
        Ok(())
    }
}
