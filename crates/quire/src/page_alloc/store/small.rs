//! Allocates and frees folios of order 0 to 8 in blocks in small pieces.
//!
//! # Protocol
//!
//! A block's bitmaps change under the block's lock; the index that finds it changes under its shard's lock,
//! taken inside. A search reads an index, unlocks it, locks the block it found and checks again. Meanwhile
//! the block may have been used up, gone whole, or changed its group: then the search starts over. A record
//! is never freed, so reading a stale candidate is harmless.
//!
//! With `wait` false it skips what is locked, since it may have interrupted the holder on its own CPU.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER, VISIT_BLOCKS};
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::request::gfp::{Contents, Mobility};
use crate::page_alloc::store::capacity::{could_be_whole, is_complete};
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::shard::ShardIndex;
use crate::page_alloc::store::zone::Zone;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> Store<'_, P> {
    /// Takes up to `out.len()` folios below a block's size; returns how many. The caller checks the mark.
    pub(in crate::page_alloc) fn store_take(&self, zone: &Zone, search: Search, out: &mut [Frame]) -> usize {
        let (mut got, mut blocks) = (0, 0);
        // A list takes less where memory is full of holes, and each folio may need another block.
        while got < out.len() && !(search.listed && blocks == VISIT_BLOCKS) {
            let Some(number) = self.find_block(zone, search) else { break };
            // This CPU may have locked the block itself, and the search would find it again.
            let Some(taken) = self.take_from(zone, number, search, &mut out[got..]) else { break };
            got += taken;
            // A block that had less than the index said is listed anew. A list that gave up after some of them would
            // find no memory where there is some.
            blocks += usize::from(taken > 0);
        }
        got
    }

    /// Makes a block one in small pieces, all free save `missing`, and known to be zero or not. Under the
    /// block's lock; none of its frames is in use.
    pub(in crate::page_alloc) fn make_small(
        &self,
        zone: &Zone,
        number: BlockNumber,
        block: &Block,
        missing: FrameMask,
        zeroed: bool,
    ) {
        block.used.store(missing);
        block.heads.store(FrameMask::EMPTY);
        block.held.store(missing);
        let capacity = (BLOCK_FRAMES - missing.count()) as u16;
        block.capacity.store(capacity, Ordering::Relaxed);
        block.free.store(capacity, Ordering::Relaxed);
        let free = FrameMask::ALL.without(missing);
        block.free_order.store(free.largest_group().min(BLOCK_ORDER), Ordering::Relaxed);
        block.set_group(zone.number, 0);
        let columns = self.frames.memmap.columns_of(number);
        // SAFETY: M2: the caller holds the lock, and none of the block's frames is in use.
        let slot = unsafe { block.open_columns(self.frames.platform, columns, number.first_frame(), 0) };
        debug_assert_eq!(slot, None, "a block without an owner has no slot");
        zeroes::change(zone, block, if zeroed { free } else { FrameMask::EMPTY });
        block.set_state(BlockState::Small);
    }

    /// Takes folios from one block, in ascending order, under one hold of its lock, and relists it. `None`: a
    /// lock is taken, and the search may not wait.
    fn take_from(
        &self,
        zone: &Zone,
        number: BlockNumber,
        search: Search,
        out: &mut [Frame],
    ) -> Option<usize> {
        let block = self.frames.memmap.block(number);
        if search.wait {
            block.lock(self.frames.platform);
        } else if !block.try_lock(self.frames.platform) {
            return None;
        }
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        // Without waiting, the shard's lock comes first, since the block must be relisted.
        let index = if search.wait { None } else { shard.0.try_lock(self.frames.platform) };
        if !search.wait && index.is_none() {
            block.unlock(self.frames.platform);
            return None;
        }
        let mut got = 0;
        let lock = || shard.0.lock(self.frames.platform);
        if zone.isolated.contains(number) {
            // This code may have interrupted the task that is about to hide it, and would find it again and again.
            shard.hide(&mut index.unwrap_or_else(lock), &self.frames.memmap, number, block);
        } else {
            // A block that is no longer in small pieces has no free group.
            got = take_fitting(zone, number, block, search, out);
            if ShardIndex::wanted_list(block) != block.listed.load(Ordering::Relaxed) {
                index.unwrap_or_else(lock).relist(&self.frames.memmap, number, block);
            }
        }
        block.unlock(self.frames.platform);
        self.frames.count(Stat::BlockLock, 1);
        zone.add_free(-((got as i64) << search.order.get()));
        Some(got)
    }

    /// Lets searches find all that a block has, after its free groups changed. Under the block's lock.
    #[inline]
    pub(in crate::page_alloc) fn relist(&self, zone: &Zone, number: BlockNumber, block: &Block) {
        if ShardIndex::hides(block) {
            let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))].0;
            shard.lock(self.frames.platform).relist(&self.frames.memmap, number, block);
        }
    }

    /// Frees used frames of one block in small pieces, neither mapped nor held. Gives the block's lock back.
    pub(in crate::page_alloc) fn store_put(&self, number: BlockNumber, block: &Block, frames: FrameMask) {
        self.count_put_now(self.store_frames(number, block, frames));
    }

    /// As [`Self::store_put`] for one folio.
    pub(in crate::page_alloc) fn store_put_one(
        &self,
        number: BlockNumber,
        block: &Block,
        index: usize,
        order: Order,
    ) {
        self.count_put_now(self.store_one(number, block, index, order));
    }

    /// As [`Self::store_put`]. The caller counts: so many frames of the zone with this number, and one lock.
    pub(in crate::page_alloc) fn store_frames(
        &self,
        number: BlockNumber,
        block: &Block,
        frames: FrameMask,
    ) -> (usize, u16) {
        block.used.store(block.used.load().without(frames));
        block.heads.store(block.heads.load().without(frames));
        let order = FrameMask::ALL.without(block.used.load()).largest_group();
        self.finish_put(number, block, frames.count() as u16, order)
    }

    /// As [`Self::store_frames`] for one folio.
    #[inline(always)]
    pub(in crate::page_alloc) fn store_one(
        &self,
        number: BlockNumber,
        block: &Block,
        index: usize,
        order: Order,
    ) -> (usize, u16) {
        let grown = mark_bits_free(block, index, order);
        self.finish_put(number, block, order.frames() as u16, grown)
    }

    #[inline]
    fn count_put_now(&self, (zone, count): (usize, u16)) {
        self.frames.count(Stat::BlockLock, 1);
        self.zones[zone].add_free(count.into());
    }

    /// As [`Self::store_put_one`] for a folio that is known to be zero.
    #[cold]
    pub(in crate::page_alloc) fn put_zeroed(
        &self,
        number: BlockNumber,
        block: &Block,
        index: usize,
        order: Order,
    ) {
        let grown = mark_bits_free(block, index, order);
        let folio = FrameMask::run(index, order.frames() as usize);
        zeroes::change(&self.zones[block.zone()], block, block.zeroed().union(folio));
        self.count_put_now(self.finish_put(number, block, order.frames() as u16, grown));
    }

    /// Relists the block of frames that were just marked free, and gives its lock back. The block's largest
    /// free order is now `order`, less one. The caller counts them.
    #[inline]
    fn finish_put(&self, number: BlockNumber, block: &Block, count: u16, order: u8) -> (usize, u16) {
        let zone = block.zone();
        let all_free = count_free(block, count, order);
        // Most frees of scattered frames change nothing that a search looks at: these need no shard.
        if all_free || ShardIndex::hides(block) {
            self.finish_found(zone, number, block, all_free);
        } else {
            block.unlock(self.frames.platform);
        }
        (zone, count)
    }

    /// As [`Self::finish_put`] where all of the block is free now, or a search would not find all of it.
    #[inline(never)]
    fn finish_found(&self, zone: usize, number: BlockNumber, block: &Block, all_free: bool) {
        let zone = &self.zones[zone];
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        // A spare that has nothing to give up stays one: a task may free and allocate in it in turn.
        let settled = || shard.spare() == Some(number) && is_complete(block) && block.lanes_at().is_none();
        let emptied = if all_free && !settled() {
            self.settle_emptied(zone, number, block)
        } else {
            self.relist(zone, number, block);
            None
        };
        block.unlock(self.frames.platform);
        if let Some(emptied) = emptied {
            self.put_emptied(zone, number, emptied);
        }
    }

    /// Frees one folio below a block's size, taken off a list, into the store.
    pub(in crate::page_alloc) fn put_one(&self, frame: Frame, order: Order) {
        let number = frame.block();
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        self.store_put_one(number, block, frame.index_in_block(), order);
    }

    /// As [`Self::put_one`], without waiting; returns whether it did. Leaves merging a free block to a task.
    pub(in crate::page_alloc) fn try_put_one(&self, frame: Frame, order: Order) -> bool {
        let number = frame.block();
        let block = self.frames.memmap.block(number);
        if !block.try_lock(self.frames.platform) {
            return false;
        }
        let zone = &self.zones[block.zone()];
        let shard = &zone.shards[usize::from(block.shard.load(Ordering::Relaxed))];
        let Some(mut index) = shard.0.try_lock(self.frames.platform) else {
            block.unlock(self.frames.platform);
            return false;
        };
        let grown = mark_bits_free(block, frame.index_in_block(), order);
        let spared = shard.spare().is_some() || zone.isolated.contains(number);
        if count_free(block, order.frames() as u16, grown) && could_be_whole(block) && !spared {
            shard.set_spare(Some(number));
        }
        index.relist(&self.frames.memmap, number, block);
        drop(index);
        block.unlock(self.frames.platform);
        self.frames.count(Stat::BlockLock, 1);
        zone.add_free(order.frames() as i64);
        true
    }

    /// Frees one folio of any order straight into the store.
    pub(in crate::page_alloc) fn store_free(
        &self,
        frame: Frame,
        order: Order,
        contents: Contents,
    ) -> Result<(), FreeError> {
        let number = frame.block();
        let block = self.frames.memmap.get(number).ok_or(FreeError::NotMemory)?;
        if order >= Order::BLOCK {
            return self.free_blocks(frame, order, contents);
        }
        block.lock(self.frames.platform);
        if let Err(error) = self.frames.check_listable(block, frame, order) {
            block.unlock(self.frames.platform);
            return Err(error);
        }
        self.frames.mark_free(block, frame, order, false);
        self.frames.note_freed(FrameRange::folio(frame, order));
        if contents == Contents::Zeroed {
            self.put_zeroed(number, block, frame.index_in_block(), order);
        } else {
            self.store_put_one(number, block, frame.index_in_block(), order);
        }
        Ok(())
    }
}

/// Takes folios from a block in small pieces that fit, and returns how many. Under the block's lock.
fn take_fitting(zone: &Zone, number: BlockNumber, block: &Block, search: Search, out: &mut [Frame]) -> usize {
    if block.free_order.load(Ordering::Relaxed) <= search.order.get() {
        return 0;
    }
    if block.free.load(Ordering::Relaxed) == block.capacity.load(Ordering::Relaxed) {
        block.set_group(zone.number, search.mobility as u8);
        if search.mobility == Mobility::Movable && is_complete(block) {
            zone.areas.clear(number, block);
        }
    }
    if search.mobility != Mobility::Movable {
        zone.areas.taint(number, block);
    }
    let got = take_groups(zone, block, number, search, out);
    count_taken(block, got, search.order);
    got
}

/// Counts folios that were just marked used. Under the block's lock.
#[inline]
pub(in crate::page_alloc) fn count_taken(block: &Block, folios: usize, order: Order) {
    let known = block.free_order.load(Ordering::Relaxed);
    let free = block.free.load(Ordering::Relaxed) - (folios << order.get()) as u16;
    block.free.store(free, Ordering::Relaxed);
    block.free_order.store(block.used.shrunk_group(known), Ordering::Relaxed);
}

/// Marks the frames of a folio free; returns one more than the largest free order. Under the block's lock.
#[inline(always)]
fn mark_bits_free(block: &Block, index: usize, order: Order) -> u8 {
    if order == Order::FRAME {
        block.used.remove(index);
    } else {
        block.used.remove_group(index, order);
    }
    block.heads.remove(index);
    let known = block.free_order.load(Ordering::Relaxed).max(order.get() + 1);
    // There is no list for larger groups, and no need.
    if known == BLOCK_ORDER { known } else { block.used.grown_group(index, known) }
}

/// Counts frames just marked free; returns whether all of the block is free now. Under the block's lock.
#[inline]
fn count_free(block: &Block, count: u16, order: u8) -> bool {
    let free = block.free.load(Ordering::Relaxed) + count;
    block.free.store(free, Ordering::Relaxed);
    block.free_order.store(order.min(BLOCK_ORDER), Ordering::Relaxed);
    free == block.capacity.load(Ordering::Relaxed)
}

/// Marks one aligned free group as a used folio, and returns its index. Under the block's lock.
#[inline]
pub(in crate::page_alloc) fn take_group(zone: &Zone, block: &Block, search: &Search) -> Option<usize> {
    let (index, state) = if block.has_zeroed() {
        zeroes::take_group(zone, block, search)?
    } else {
        (block.used.find_outside(search.order)?, search.state())
    };
    block.heads.insert_group(index, Order::FRAME);
    block.used.insert_group(index, search.order);
    block.columns().inspect(|columns| columns.set_state(index, state));
    Some(index)
}

/// Marks aligned free groups as used folios, writes their first frames to `out`, and returns how many.
fn take_groups(zone: &Zone, block: &Block, number: BlockNumber, search: Search, out: &mut [Frame]) -> usize {
    if search.order == Order::FRAME {
        let got = take_frames(block, number, search, out);
        if block.has_zeroed() {
            zeroes::take_frames(zone, block, &search, &out[..got]);
        }
        return got;
    }
    let mut got = 0;
    for slot in out {
        let Some(index) = take_group(zone, block, &search) else { break };
        *slot = number.first_frame().add(index as u64);
        got += 1;
    }
    got
}

/// As [`take_groups`] for order 0, a word of the maps at a time.
fn take_frames(block: &Block, number: BlockNumber, search: Search, out: &mut [Frame]) -> usize {
    let (first, state) = (number.first_frame(), search.state());
    let mut got = 0;
    for word in 0..BLOCK_FRAMES / 64 {
        let used = block.used.word(word);
        let mut free = !used;
        if used == 0 && out.len() - got >= 64 {
            let base = first.add((word * 64) as u64);
            out[got..got + 64].iter_mut().enumerate().for_each(|(at, slot)| *slot = base.add(at as u64));
            block.columns().inspect(|columns| columns.set_states(word * 64, 64, state));
            (free, got) = (0, got + 64);
            block.heads.set_word(word, u64::MAX);
            block.used.set_word(word, u64::MAX);
        }
        let mut taken = 0;
        while free != 0 && got < out.len() {
            let bit = free & free.wrapping_neg();
            let index = word * 64 + bit.trailing_zeros() as usize;
            out[got] = first.add(index as u64);
            block.columns().inspect(|columns| columns.set_state(index, state));
            taken |= bit;
            free ^= bit;
            got += 1;
        }
        if taken != 0 {
            block.heads.set_word(word, block.heads.word(word) | taken);
            block.used.set_word(word, used | taken);
        }
        if got == out.len() {
            break;
        }
    }
    got
}
