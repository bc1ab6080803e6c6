//! Map counts of a block inside a page of a pool that stand in its record.
//!
//! Behind the first block of such a page the record has 64 bytes free: a bit for each frame, where other blocks have their
//! folio's descriptor. With the number of tables that map all of the block this counts any number of whole tables, and parts that
//! do not meet; a table of which a part is unmapped becomes bits. Only when a second one does, there must be a slot.
//!
//! Whoever unmaps cannot ask for memory. So a slot is *promised* as long as it may be needed: while tables, and the bits as one
//! of them, are two or more. Nothing notes that a block was promised one: its counts say it.
#![forbid(unsafe_code)]

use super::bitmap::FrameMask;
use super::block::{Block, BlockState};
use super::folio_maps::NARROW_MOST;
use super::lanes::{LaneError, LaneWidth};
use crate::addr::PhysAddr;
use crate::limits::BLOCK_FRAMES;
use crate::platform::Platform;

/// Slots for blocks that may need one when memory cannot be asked for.
pub(crate) trait SlotPromises {
    /// Promises one more; whether there is one.
    fn promise(&self) -> bool;
    /// One promise less.
    fn release(&self);
    /// Takes a slot that was promised; what it holds is whatever was there.
    fn redeem(&self) -> PhysAddr;
}

/// What the counts in a record need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordNeed {
    /// Nothing: any run of an empty block, or a table more.
    Nothing,
    /// The next table needs a promise.
    Promise,
    /// What comes may need lanes.
    Slot,
}

/// Whether so many tables, and bits, need a promise.
fn is_promised(tables: u32, bits: bool) -> bool {
    tables + u32::from(bits) >= 2
}

impl Block {
    fn has_bits(&self) -> bool {
        !self.heads.misses_run(0, BLOCK_FRAMES)
    }

    /// Whether a slot is promised to a block that has none. Under its lock.
    pub(crate) fn has_promise(&self) -> bool {
        self.state() == BlockState::FolioTail
            && self.lanes_at().is_none()
            && is_promised(self.tables(), self.has_bits())
    }

    /// What one more table would need of a block whose counts stand in its record. Under its lock.
    pub(crate) fn record_need(&self) -> RecordNeed {
        match self.tables() {
            _ if self.has_bits() => RecordNeed::Slot,
            1 => RecordNeed::Promise,
            tables if tables + 1 < NARROW_MOST => RecordNeed::Nothing,
            _ => RecordNeed::Slot,
        }
    }

    /// One more leaf for each frame of a run. Whether perhaps nothing was counted before.
    #[inline]
    pub(super) fn add_in_record(
        &self,
        promises: &impl SlotPromises,
        start: usize,
        count: usize,
    ) -> Result<bool, LaneError> {
        let tables = self.tables();
        if count == BLOCK_FRAMES {
            let bits = self.has_bits();
            if tables + 1 >= NARROW_MOST {
                return Err(LaneError::Full);
            }
            promise(promises, is_promised(tables, bits), is_promised(tables + 1, bits))?;
            self.set_tables(tables + 1);
            return Ok(tables == 0);
        }
        if self.heads.meets_run(start, count) {
            return Err(LaneError::Full);
        }
        if tables > 0 {
            promise(promises, is_promised(tables, self.has_bits()), true)?;
        }
        self.heads.insert_run(start, count);
        let full = |word: usize| self.heads.word(word) == u64::MAX;
        // Mostly the word that has just changed says that there is more to come.
        if tables + 2 < NARROW_MOST && full(start / 64) && (0..BLOCK_FRAMES / 64).all(full) {
            self.heads.store(FrameMask::EMPTY);
            self.set_tables(tables + 1);
        }
        Ok(tables == 0)
    }

    /// One leaf less for each frame of a run.
    #[inline]
    pub(super) fn remove_in_record<P: Platform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        start: usize,
        count: usize,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let tables = self.tables();
        if tables > 0 && count == BLOCK_FRAMES {
            let bits = self.has_bits();
            self.set_tables(tables - 1);
            release(promises, is_promised(tables, bits), is_promised(tables - 1, bits));
            if tables == 1 {
                *zeroed = zeroed.union(FrameMask::ALL.without(self.heads.load()));
            }
            return Ok(());
        }
        if tables > 0 || self.state() != BlockState::FolioTail {
            return self.remove_each_in_record(platform, promises, FrameMask::run(start, count), zeroed);
        }
        if !self.heads.contains_run(start, count) {
            return Err(LaneError::Underflow);
        }
        self.heads.remove_run(start, count);
        *zeroed = zeroed.union(FrameMask::run(start, count));
        Ok(())
    }

    /// The same for each of these frames.
    #[inline(never)]
    pub(super) fn remove_each_in_record<P: Platform>(
        &self,
        platform: &P,
        promises: &impl SlotPromises,
        frames: FrameMask,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        let (tables, bits) = (self.tables(), self.heads.load());
        let in_bits = frames.without(bits).is_empty();
        if self.state() != BlockState::FolioTail || tables == 0 && !in_bits {
            return Err(LaneError::Underflow);
        }
        if !in_bits && !bits.is_empty() {
            let lanes = self.move_to_slot(platform, promises, bits)?;
            return self.remove_from_slot(platform, lanes, frames, zeroed);
        }
        // Without bits a table becomes such.
        let (left, rest) = if in_bits { (tables, bits) } else { (tables - 1, FrameMask::ALL) };
        let rest = rest.without(frames);
        self.set_tables(left);
        self.heads.store(rest);
        release(promises, is_promised(tables, !bits.is_empty()), is_promised(left, !rest.is_empty()));
        if left == 0 {
            *zeroed = zeroed.union(frames);
        }
        Ok(())
    }

    /// Moves the bits to the slot that was promised.
    fn move_to_slot<'b, P: Platform>(
        &'b self,
        platform: &P,
        promises: &impl SlotPromises,
        bits: FrameMask,
    ) -> Result<super::lanes::Lanes<'b>, LaneError> {
        self.change_slot(platform, promises.redeem(), LaneWidth::Bits);
        let lanes = self.slot_lanes(platform).ok_or(LaneError::Underflow)?;
        debug_assert!(lanes.nonzero() == bits);
        Ok(lanes)
    }
}

#[inline]
fn promise(promises: &impl SlotPromises, before: bool, after: bool) -> Result<(), LaneError> {
    if after && !before && !promises.promise() { Err(LaneError::Full) } else { Ok(()) }
}

#[inline]
fn release(promises: &impl SlotPromises, before: bool, after: bool) {
    if before && !after {
        promises.release();
    }
}
