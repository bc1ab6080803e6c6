//! Counts the leaves that map folios of whole blocks, and frees such a folio when its last leaf goes.
//!
//! # Protocol
//!
//! A folio of several blocks counts all its leaves at its head. A leaf of another block is counted down under that
//! block's lock, and then the head's lock is taken. Between the two no lock protects the folio: other CPUs could
//! unmap the rest of it, free it and allocate it again, or split it. So a leaf that may be the last one stays
//! counted at the head until the head's lock is taken (invariant 5).
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::frames::state::head_of;
use crate::page_alloc::mapcount::blocks::FreedBlocks;
use crate::page_alloc::mapcount::counter::Counter;
use crate::page_alloc::request::gfp::Contents;
use crate::platform::FramePlatform;

impl<P: FramePlatform> Counter<'_, '_, P> {
    /// As [`Self::count_folio`] for 4 KiB leaves, which pages of a pool do not count at their start.
    #[inline]
    pub(in crate::page_alloc) fn count_small(&self, frame: Frame, block: &Block, leaves: i64) {
        if block.state() != BlockState::Small && !self.counts.counts_in_record(frame, block) {
            self.count_folio(frame, block, leaves);
        }
    }

    /// A folio of more than one block counts all its leaves together at its start. Other leaves of `block`, which is
    /// locked, keep the folio mapped.
    #[inline]
    pub(in crate::page_alloc) fn count_folio(&self, frame: Frame, block: &Block, leaves: i64) {
        let order = block.order.load(Ordering::Relaxed);
        if order > Order::BLOCK.get() && block.state() != BlockState::Small {
            let head = self.counts.frames().memmap.block(head_of(frame.block(), order));
            head.folio_maps.fetch_add(leaves as u64, Ordering::AcqRel);
        }
    }

    /// Counts down leaves of a folio of whole blocks that the record of `block`, which is locked, counts no more. If
    /// no leaf maps the folio now and nothing holds it, frees it with these `contents`, and gives the lock back.
    /// Returns how many frames became free.
    pub(in crate::page_alloc) fn count_folio_down(
        &mut self,
        frame: Frame,
        block: &Block,
        leaves: u64,
        contents: Contents,
    ) -> u64 {
        if block.state() == BlockState::FolioTail {
            return self.count_tail_down(frame, block, leaves);
        }
        if block.order.load(Ordering::Relaxed) > Order::BLOCK.get() {
            block.folio_maps.fetch_sub(leaves, Ordering::AcqRel);
        }
        self.free_folio_if_unmapped(frame.block(), block, contents)
    }

    /// [`Self::count_folio_down`] for a block that is not the folio's first.
    fn count_tail_down(&mut self, frame: Frame, block: &Block, leaves: u64) -> u64 {
        let order = block.order.load(Ordering::Relaxed);
        let number = head_of(frame.block(), order);
        let head = self.counts.frames().memmap.block(number);
        let mapped =
            block.large_maps.load(Ordering::Relaxed) != 0 || block.small_maps(self.counts.platform()).any();
        // A pool's page mapped in parts is a file's, which may reuse it as soon as this lock is free.
        if mapped || self.counts.is_part_of_huge(frame, block) {
            head.folio_maps.fetch_sub(leaves, Ordering::AcqRel);
            return 0;
        }
        let unless_last = |maps: u64| (maps > leaves).then(|| maps - leaves);
        if head.held.contains(0)
            && head.folio_maps.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_last).is_ok()
        {
            // The holder or the last leaf frees it.
            return 0;
        }
        let head = self.enter(number);
        let left = head.folio_maps.fetch_sub(leaves, Ordering::AcqRel) - leaves;
        if head.state() != BlockState::Folio {
            // It becomes the start of a part, and the task that splits the folio decides about the part.
            return 0;
        }
        if left == 0 {
            // A task that split the folio meanwhile left the first part to this CPU.
            return self.free_folio_if_unmapped(number, head, Contents::Unknown);
        }
        if head.order.load(Ordering::Relaxed) == order
            && head.gigantic_maps.load(Ordering::Relaxed) == 0
            && !head.held.contains(0)
        {
            self.counts.defer_split(number, head);
        }
        0
    }

    /// Frees the folio of whole blocks at `head`, which is locked, if no leaf maps it and nothing holds it; gives the
    /// lock back then. `contents` is what the caller knows of its memory.
    pub(in crate::page_alloc) fn free_folio_if_unmapped(
        &mut self,
        number: BlockNumber,
        head: &Block,
        contents: Contents,
    ) -> u64 {
        let order = Order::new(head.order.load(Ordering::Relaxed)).unwrap_or(Order::BLOCK);
        if !self.is_folio_unused(number, head, order) {
            return 0;
        }
        self.counts.forget_deferred(number, head);
        head.set_state(BlockState::Listed);
        let zeroed = contents == Contents::Zeroed && self.counts.store().zeroes.remember;
        FrameState::FREE.with_zeroes(zeroed).put(head.folio_state_cell());
        let zone = head.zone();
        self.unlock_block();
        if order == Order::BLOCK {
            self.whole.add(self.counts, FreedBlocks::one(number, zone, zeroed));
        } else {
            self.counts.store().put_whole(number, order);
        }
        order.frames()
    }

    /// Whether no leaf maps a folio and nothing holds it. If leaves map some of its frames only, its split is
    /// deferred. Under its lock.
    fn is_folio_unused(&self, number: BlockNumber, head: &Block, order: Order) -> bool {
        let held = head.held.contains(0);
        let large = head.large_maps.load(Ordering::Relaxed) != 0;
        let all = head.folio_maps.load(Ordering::Acquire) != 0;
        let small = head.small_maps(self.counts.platform());
        let (mapped, partly) = if order == Order::BLOCK {
            let (whole, pieces) = (large || all, small.any());
            // Mostly there are no pieces, and to read 512 counts would cost half of the free.
            (whole || pieces, !whole && pieces && !small.nonzero().is_full())
        } else {
            let gigantic = head.gigantic_maps.load(Ordering::Relaxed) != 0;
            (all, !gigantic && !large && !small.any())
        };
        match (mapped, held) {
            (false, true) => self.counts.unmapped_while_held(number, head),
            (true, false) if partly => self.counts.defer_split(number, head),
            _ => {}
        }
        !mapped && !held
    }
}
