//! Allocates and frees folios of whole blocks, of order 9 (2 MiB) to 18 (1 GiB), straight from the pools.

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::FreeError;
use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER};
use crate::memmap::{Block, BlockState, FrameMask, FrameState};
use crate::page_alloc::frames::huge_zeroes::{is_zero_block, is_zero_page};
use crate::page_alloc::request::gfp::Contents;
use crate::page_alloc::store::Store;
use crate::page_alloc::store::slots::CountSlot;
use crate::page_alloc::store::zone::{Wanted, Zone};
use crate::platform::FramePlatform;

pub(in crate::page_alloc) const fn blocks_of(order: Order) -> u32 {
    1 << (order.get() - BLOCK_ORDER)
}

impl<P: FramePlatform> Store<'_, P> {
    /// Takes an aligned folio of order 9 or more from a zone; returns whether all of it is known to be zero.
    /// Its state says so too, if `contents` asks.
    pub(in crate::page_alloc) fn take_whole(
        &self,
        zone: &Zone,
        order: Order,
        contents: Contents,
        wait: bool,
    ) -> Option<(Frame, bool)> {
        let blocks = blocks_of(order);
        let (number, zeroed) = self.take_run(zone, Wanted { blocks, align: blocks, contents, wait })?;
        for tail in (0..blocks).rev() {
            let block = self.frames.memmap.block(number.add(tail));
            let state = if tail == 0 { BlockState::Folio } else { BlockState::FolioTail };
            self.claim(zone, block, order, state, zeroed && contents == Contents::Zeroed);
        }
        zone.add_free(-(order.frames() as i64));
        Some((number.first_frame(), zeroed))
    }

    /// Takes a run of whole blocks off a zone's pools, and makes spare blocks whole for it if need be;
    /// returns whether all of it is known to be zero.
    pub(in crate::page_alloc) fn take_run(&self, zone: &Zone, wanted: Wanted) -> Option<(BlockNumber, bool)> {
        zone.take_blocks(self.frames.platform, wanted).or_else(|| {
            let merged = wanted.wait && self.merge_spares(zone) > 0;
            merged.then(|| zone.take_blocks(self.frames.platform, wanted)).flatten()
        })
    }

    /// Writes the record of a block that just left the pool. No other code writes it before it has an owner,
    /// so it needs no lock, which an interrupt could not wait for; readers see no block in small pieces.
    pub(in crate::page_alloc) fn claim(
        &self,
        zone: &Zone,
        block: &Block,
        order: Order,
        state: BlockState,
        zeroed: bool,
    ) {
        block.order.store(order.get(), Ordering::Relaxed);
        block.set_group(zone.number, 0);
        FrameState::in_use(order).with_zeroes(zeroed).put(block.folio_state_cell());
        block.set_state(state);
    }

    /// Frees a folio of order 9 or more.
    pub(in crate::page_alloc) fn free_blocks(
        &self,
        frame: Frame,
        order: Order,
        contents: Contents,
    ) -> Result<(), FreeError> {
        let number = frame.block();
        let block = self.frames.memmap.get(number).ok_or(FreeError::NotMemory)?;
        block.lock(self.frames.platform);
        let checked = self.frames.check_whole(block, frame, order);
        if checked.is_ok() {
            // From now on a second free of the folio finds it listed.
            block.set_state(BlockState::Listed);
            FrameState::FREE.with_zeroes(contents == Contents::Zeroed).put(block.folio_state_cell());
        }
        block.unlock(self.frames.platform);
        checked?;
        self.put_whole(number, order);
        Ok(())
    }

    /// Frees the blocks of an unused folio into their pool. The caller has marked the first one listed under
    /// its lock, so no other code touches them. Its state says whether all of it is known to be zero.
    pub(in crate::page_alloc) fn put_whole(&self, number: BlockNumber, order: Order) {
        self.frames.note_freed(FrameRange::folio(number.first_frame(), order));
        let block = self.frames.memmap.block(number);
        let zeroed = FrameState::of(block.folio_state_cell()).is_zeroed();
        self.put_run(&self.zones[block.zone()], number, blocks_of(order), zeroed);
    }

    /// Frees unused blocks that no other code touches into their region's pool, all of them known to be zero if
    /// `zeroed`, else those that are marked so as parts of a page of a pool of huge pages.
    pub(in crate::page_alloc) fn put_run(&self, zone: &Zone, number: BlockNumber, blocks: u32, zeroed: bool) {
        let zeroed = zeroed || is_zero_page(self.frames.memmap.block(number));
        // Blocks that are put together, all or none of them zero: they end below those that went back before.
        let (mut whole_end, mut whole_zeroed) = (blocks, zeroed);
        for tail in (0..blocks).rev() {
            let block = self.frames.memmap.block(number.add(tail));
            block.lock(self.frames.platform);
            let own_zeroed = zeroed || is_zero_block(block);
            let bad = if self.frames.bad_frames() == 0 { FrameMask::EMPTY } else { block.used.load() };
            let slot = block.lanes_at().map(CountSlot::of);
            debug_assert!(
                !block.small_maps(self.frames.platform).any(),
                "4 KiB leaves map a folio that is freed"
            );
            block.reset();
            block.unlock(self.frames.platform);
            if let Some(slot) = slot {
                self.give_slot(slot);
            }
            if own_zeroed != whole_zeroed || !bad.is_empty() {
                self.put_whole_run(zone, number.add(tail + 1), whole_end - tail - 1, whole_zeroed);
                (whole_end, whole_zeroed) = (tail + 1, own_zeroed);
            }
            if !bad.is_empty() {
                self.put_in_pieces(zone, number.add(tail), bad);
                whole_end = tail;
            }
        }
        self.put_whole_run(zone, number, whole_end, whole_zeroed);
    }

    fn put_whole_run(&self, zone: &Zone, number: BlockNumber, blocks: u32, zeroed: bool) {
        if blocks > 0 {
            zone.put_blocks(self.frames.platform, &self.frames.memmap, number, blocks, zeroed);
            zone.add_free(i64::from(blocks) * BLOCK_FRAMES as i64);
        }
    }
}
