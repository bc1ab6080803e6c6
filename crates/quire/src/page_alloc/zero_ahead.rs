//! The verb for idle CPUs: clears free memory, so that it need not be when somebody waits for it.
//!
//! There is no reserve that could run dry or be hoarded. Memory that was cleared ahead lies where it lay, free, with a mark
//! ([`super::zeroes`]). Only while it is being cleared it is away: a block of 2 MiB or less for each CPU that does so, and
//! only from a zone that has plenty.
#![forbid(unsafe_code)]

use super::PageAllocator;
use super::gfp::Contents;
use super::merge::could_be_whole;
use super::search::Search;
use super::shard::Shard;
use super::store::{count_taken, take_group};
use super::zone::Zone;
use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::clear::Extent;
use crate::limits::{BLOCK_FRAMES, ZERO_AHEAD_FRAMES};
use crate::memmap::{Block, BlockState};
use crate::platform::{Context, Platform, TouchHint};
use crate::stats::Stat;

/// The order of the pieces that are cleared at a time.
const PIECE: Order = match Order::new(ZERO_AHEAD_FRAMES.trailing_zeros() as u8) {
    Some(order) => order,
    None => Order::FRAME,
};

impl<P: Platform> PageAllocator<'_, P> {
    /// Clears one block of free memory, or free pieces of one, if less is known to be zero than
    /// [`Zeroes`](super::Zeroes) asks for and memory is not short; whether it did. For a CPU that has nothing else to do, which
    /// calls it until it says no, with no lock held and not pinned: it comes by reschedule points, and stops at one when the
    /// task is dying.
    pub fn zero_ahead(&self) -> bool {
        if !self.zeroes.remember || self.platform.context() != Context::Task {
            return false;
        }
        let blocks: u64 = self.zones.iter().map(|zone| zone.zeroed_blocks(self.platform)).sum();
        let more_blocks = (blocks + 1) * BLOCK_FRAMES as u64 <= self.zeroes.blocks_ahead;
        let plenty = |zone: &&Zone| zone.free_frames() > zone.marks.high + 2 * BLOCK_FRAMES as u64;
        self.zones.iter().filter(plenty).any(|zone| {
            let more_pieces = zone.zeroed_pieces() < self.zeroes.pieces_ahead;
            more_blocks && self.zero_block(zone) || more_pieces && self.zero_pieces(zone)
        })
    }

    /// Clears the lowest whole block of a zone of which nothing is known: so runs for gigantic folios come about.
    fn zero_block(&self, zone: &Zone) -> bool {
        let taken = self.interrupts_guarded(|| zone.take_stale_block(self.platform));
        let Some(number) = taken else { return false };
        zone.add_free(-(BLOCK_FRAMES as i64));
        let cleared = self.zero_frames(FrameRange::folio(number.first_frame(), Order::BLOCK));
        self.interrupts_guarded(|| zone.put_blocks(self.platform, &self.memmap, number, 1, cleared));
        zone.add_free(BLOCK_FRAMES as i64);
        cleared
    }

    /// Clears the larger free groups of a block in small pieces that has none that are known to be zero.
    fn zero_pieces(&self, zone: &Zone) -> bool {
        let found = zone.shards.iter().find_map(|shard| self.find_stale(shard));
        let Some(number) = found else { return false };
        let block = self.memmap.block(number);
        let mut folios = [Frame(0); BLOCK_FRAMES / ZERO_AHEAD_FRAMES];
        let taken = self.interrupts_guarded(|| self.take_stale(zone, number, block, &mut folios));
        let mut cleared = 0;
        for &folio in &folios[..taken] {
            let whole = self.zero_frames(FrameRange::folio(folio, PIECE));
            let contents = if whole { Contents::Zeroed } else { Contents::Unknown };
            let freed = self.interrupts_guarded(|| self.store_free(folio, PIECE, contents));
            debug_assert_eq!(freed, Ok(()), "a folio of our own");
            cleared += usize::from(whole);
        }
        cleared > 0
    }

    /// A block with a free group that is worth it, and no frame that is known to be zero; not one that is about to be whole.
    /// A hint.
    fn find_stale(&self, shard: &Shard) -> Option<BlockNumber> {
        let index = shard.0.lock(self.platform);
        index.find_large(&self.memmap, PIECE, |block| !block.has_zeroed() && !could_be_whole(block))
    }

    /// Takes the free groups of a block; how many.
    fn take_stale(&self, zone: &Zone, number: BlockNumber, block: &Block, folios: &mut [Frame]) -> usize {
        block.lock(self.platform);
        let ours = block.state() == BlockState::Small && block.zone() == usize::from(zone.number);
        let mut taken = 0;
        if ours && !block.has_zeroed() && !zone.isolated.contains(number) {
            let search = Search::within(PIECE);
            for slot in folios.iter_mut() {
                let Some(index) = take_group(zone, block, &search) else { break };
                *slot = number.first_frame().add(index as u64);
                taken += 1;
            }
            count_taken(block, taken, PIECE);
        }
        block.unlock(self.platform);
        zone.add_free(-((taken as i64) << PIECE.get()));
        taken
    }

    /// Clears frames that are nobody's; whether all of them are zero now.
    fn zero_frames(&self, frames: FrameRange) -> bool {
        let extent = Extent::new(frames, TouchHint::Later);
        let cleared = self.clear_extent(&extent).is_ok();
        self.count(Stat::PgzeroAhead, if cleared { frames.count } else { 0 });
        cleared
    }
}
