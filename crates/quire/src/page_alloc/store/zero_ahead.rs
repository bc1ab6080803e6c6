//! Lets idle CPUs clear free memory, so that a task that needs zeroes does not wait for them.
//!
//! There is no reserve that could run out. Memory that was cleared ahead stays free where it was, with a mark
//! ([`zeroed`](super::zeroed)). A CPU takes memory out of the store only while it clears it: one block of 2
//! MiB or one piece, from a zone that has plenty.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::clear::Extent;
use crate::limits::{BLOCK_FRAMES, ZERO_AHEAD_FRAMES};
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::store::capacity::could_be_whole;
use crate::page_alloc::store::search::Search;
use crate::page_alloc::store::shard::Shard;
use crate::page_alloc::store::small::{count_taken, take_group};
use crate::page_alloc::store::zone::Zone;
use crate::page_alloc::store::{Store, zeroed as zeroes};
use crate::platform::{Context, FramePlatform, TouchHint};
use crate::stats::Stat;

const PIECE: Order = match Order::new(ZERO_AHEAD_FRAMES.trailing_zeros() as u8) {
    Some(order) => order,
    None => Order::FRAME,
};

impl<P: FramePlatform> Store<'_, P> {
    /// Clears one block of free memory, or free pieces of one, if less is known to be zero than
    /// [`Zeroes`](crate::page_alloc::Zeroes) asks for and memory is not short; returns whether it did. An
    /// idle CPU calls it until it returns false, with no lock held and not pinned: it invokes reschedule
    /// points, and stops at one when the task is dying.
    pub fn zero_ahead(&self) -> bool {
        if !self.zeroes.remember || self.frames.platform.context() != Context::Task {
            return false;
        }
        let plenty = |zone: &&Zone| zone.free_frames() > zone.marks.high() + 2 * BLOCK_FRAMES as u64;
        self.zones.iter().filter(plenty).any(|zone| {
            let more_pieces = zone.zeroed_pieces() < self.zeroes.pieces_ahead;
            self.wants_block(zone) && self.zero_block(zone) || more_pieces && self.zero_pieces(zone)
        })
    }

    /// Whether another block of the zone should be zeroed: all zones have fewer than there should be, and
    /// this zone has less than its share by memory, rounded up. So no node is left without.
    fn wants_block(&self, zone: &Zone) -> bool {
        let ahead = self.zeroes.blocks_ahead;
        // To count takes the lock of every pool.
        if ahead < BLOCK_FRAMES as u64 {
            return false;
        }
        let all: u64 = self.zones.iter().map(|zone| zone.zeroed_blocks(self.frames.platform)).sum();
        let memory: u64 = self.zones.iter().map(|zone| zone.managed.load(Ordering::Relaxed)).sum();
        let own = zone.zeroed_blocks(self.frames.platform) * BLOCK_FRAMES as u64;
        let share = u128::from(ahead) * u128::from(zone.managed.load(Ordering::Relaxed));
        (all + 1) * BLOCK_FRAMES as u64 <= ahead && u128::from(own) * u128::from(memory) < share
    }

    /// Clears the lowest whole block that is not known to be zero, so that runs for gigantic folios form.
    fn zero_block(&self, zone: &Zone) -> bool {
        let taken = self.frames.interrupts_guarded(|| zone.take_stale_block(self.frames.platform));
        let Some(number) = taken else { return false };
        zone.add_free(-(BLOCK_FRAMES as i64));
        let cleared =
            self.zero_frames(FrameRange::folio(number.first_frame(), Order::BLOCK), FrameMask::EMPTY);
        self.frames.interrupts_guarded(|| {
            zone.put_blocks(self.frames.platform, &self.frames.memmap, number, 1, cleared)
        });
        zone.add_free(BLOCK_FRAMES as i64);
        cleared
    }

    /// Clears the free pieces of one block that are not zero, until the task is dying.
    fn zero_pieces(&self, zone: &Zone) -> bool {
        let found = zone.shards.iter().find_map(|shard| self.find_stale(shard));
        let Some(number) = found else { return false };
        let mut cleared = false;
        for _ in 0..BLOCK_FRAMES / ZERO_AHEAD_FRAMES {
            let taken = self.frames.interrupts_guarded(|| self.take_stale(zone, number));
            let Some((folio, zeroed)) = taken else { break };
            cleared = self.zero_frames(FrameRange::folio(folio, PIECE), zeroed);
            self.frames.interrupts_guarded(|| self.put_piece(folio, cleared));
            if !cleared {
                break;
            }
        }
        cleared
    }

    /// A block with a free piece that is not zero, unless the block is about to be whole. A hint.
    fn find_stale(&self, shard: &Shard) -> Option<BlockNumber> {
        let index = shard.0.lock(self.frames.platform);
        // A block on a list is in small pieces: leaving the list needs the lock held here.
        index.find_large(&self.frames.memmap, PIECE, |block| {
            stale_piece(block).is_some() && !could_be_whole(block)
        })
    }

    /// Takes a free piece that is not zero from a block. Returns with it which frames of the block were known to be zero.
    fn take_stale(&self, zone: &Zone, number: BlockNumber) -> Option<(Frame, FrameMask)> {
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        let ours = block.state() == BlockState::Small
            && block.zone() == usize::from(zone.number)
            && !zone.isolated.contains(number);
        let taken = if ours { take_piece(zone, block) } else { None };
        block.unlock(self.frames.platform);
        let (index, zeroed) = taken?;
        zone.add_free(-(ZERO_AHEAD_FRAMES as i64));
        Some((number.first_frame().add(index as u64), zeroed))
    }

    /// Frees a piece that [`Self::take_stale`] took.
    fn put_piece(&self, folio: Frame, cleared: bool) {
        let (number, index) = (folio.block(), folio.index_in_block());
        let block = self.frames.memmap.block(number);
        block.lock(self.frames.platform);
        self.frames.note_freed(FrameRange::folio(folio, PIECE));
        if cleared {
            self.put_zeroed(number, block, index, PIECE);
        } else {
            self.store_put_one(number, block, index, PIECE);
        }
    }

    /// Clears frames of one block that were taken out of the store, but those that are zero by `zeroed`, unless the task
    /// is dying; returns whether it did. Reschedules.
    fn zero_frames(&self, frames: FrameRange, zeroed: FrameMask) -> bool {
        let first = frames.start.block().first_frame();
        let all = FrameMask::run(frames.start.index_in_block(), frames.count as usize);
        let clear = |(at, count): (usize, usize)| {
            let run = FrameRange::new(first.add(at as u64), count as u64);
            // SAFETY: invariant 1: the caller has taken the frames out of the store.
            unsafe { self.frames.clear_frames_in_stretches(&Extent::new(run, TouchHint::Later)) }
        };
        let stale = all.without(zeroed);
        let cleared = !self.frames.platform.is_dying() && stale.runs().map(clear).all(|done| done.is_ok());
        self.frames.count(Stat::PgzeroAhead, if cleared { stale.count() as u64 } else { 0 });
        self.frames.platform.reschedule_point();
        cleared
    }
}

/// Index of the first free piece that is not all known to be zero. Under the block's lock, or as a hint.
fn stale_piece(block: &Block) -> Option<usize> {
    let zeroed = block.columns().filter(|_| block.has_zeroed()).map(|columns| columns.zeroed());
    let is_zero = |at| zeroed.is_some_and(|zeroed| zeroed.contains_run(at, ZERO_AHEAD_FRAMES));
    let mut pieces = (0..BLOCK_FRAMES).step_by(ZERO_AHEAD_FRAMES);
    pieces.find(|&at| block.used.misses_run(at, ZERO_AHEAD_FRAMES) && !is_zero(at))
}

/// Marks the first such piece as a used folio, with the state of one on a list: a task that looks at it waits until it is
/// free. Returns its index, and which frames were known to be zero. Under the block's lock.
fn take_piece(zone: &Zone, block: &Block) -> Option<(usize, FrameMask)> {
    let piece = FrameMask::run(stale_piece(block)?, ZERO_AHEAD_FRAMES);
    let zeroed = block.zeroed();
    // Without marks, a search for unknown contents takes it first.
    zeroes::change(zone, block, zeroed.without(piece));
    let index = take_group(zone, block, &Search { listed: true, ..Search::within(PIECE) })?;
    count_taken(block, 1, PIECE);
    Some((index, zeroed))
}
