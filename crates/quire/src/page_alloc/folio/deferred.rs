//! Folios of order 9 and more that wait to be split: smaller leaves map some of their frames and none maps the
//! others, and one record cannot say that those are free. (In Linux: the deferred split queue.)
//!
//! They are linked through their folio descriptors. A folio joins and leaves the list under its block's lock, with the
//! list's own taken inside.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::error::SplitError;
use crate::limits::DEFERRED_SPLITS;
use crate::memmap::{Block, BlockState, DescriptorFlags};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::folio::split::Only;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// How many folios wait to be split.
    pub fn deferred_splits(&self) -> u64 {
        self.deferred.lock(self.platform).count
    }

    /// Splits folios that wait for it, the oldest first, until `wanted` frames became free, at most [`DEFERRED_SPLITS`] of
    /// them; how many frames did.
    pub fn split_deferred(&self, wanted: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..DEFERRED_SPLITS {
            let first = self.deferred.lock(self.platform).first;
            let Some(number) = first.checked_sub(1).filter(|_| freed < wanted) else { break };
            match self.split_waiting(BlockNumber(number as u32)) {
                Ok(more) => freed += more,
                // It was freed, or another task split it, since we looked.
                Err(SplitError::NotAFolio) => {}
                // A large leaf maps it again, or another task is splitting it.
                Err(SplitError::InUse) => self.forget_if_deferred(BlockNumber(number as u32)),
                Err(SplitError::OutOfMemory) => break,
            }
        }
        freed
    }

    /// Splits a folio as far as it must be for what is not mapped to be free, if it waits for that still.
    fn split_waiting(&self, number: BlockNumber) -> Result<u64, SplitError> {
        if self.memmap.block(number).order.load(Ordering::Relaxed) > Order::BLOCK.get() {
            return self.split_large(number, Order::BLOCK, Only::Waiting);
        }
        self.split_block(number, Order::FRAME, Only::Waiting)
    }

    /// Puts a folio of more than a block on the list if some of its blocks are mapped, by leaves of 2 MiB or smaller ones, and
    /// others not. A block that is being mapped or unmapped may be taken for either; the task that unmaps one looks
    /// itself.
    pub(crate) fn defer_if_partly_mapped(&self, frame: Frame) {
        let (number, block) = (frame.block(), self.memmap.block(frame.block()));
        block.lock(self.platform);
        let order = block.order.load(Ordering::Relaxed);
        let is_mapped = |at: u32| {
            let part = self.memmap.block(number.add(at));
            part.large_maps.load(Ordering::Relaxed) != 0 || part.small_maps(self.platform).any()
        };
        if block.state() == BlockState::Folio
            && order > Order::BLOCK.get()
            && !block.held.contains(0)
            && block.gigantic_maps.load(Ordering::Relaxed) == 0
            && block.folio_maps.load(Ordering::Relaxed) != 0
            && !(0..1 << (order - Order::BLOCK.get())).all(is_mapped)
        {
            self.defer_split(number, block);
        }
        block.unlock(self.platform);
    }

    /// Puts a folio on the list. Under its lock.
    pub(in crate::page_alloc) fn defer_split(&self, number: BlockNumber, block: &Block) {
        let folio = block.folio();
        if folio.has(DescriptorFlags::DEFERRED) {
            return;
        }
        folio.add_flags(DescriptorFlags::DEFERRED);
        let mut list = self.deferred.lock(self.platform);
        folio.next.store(0, Ordering::Relaxed);
        folio.previous.store(list.last, Ordering::Relaxed);
        let own = u64::from(number.0) + 1;
        match self.link_of(list.last) {
            Some(last) => last.folio().next.store(own, Ordering::Relaxed),
            None => list.first = own,
        }
        list.last = own;
        list.count += 1;
        drop(list);
        self.count(Stat::ThpDeferredSplitPage, 1);
    }

    /// Takes a folio off the list, if it is on it. Under its lock.
    pub(in crate::page_alloc) fn forget_deferred(&self, number: BlockNumber, block: &Block) {
        let folio = block.folio();
        if !folio.has(DescriptorFlags::DEFERRED) {
            return;
        }
        folio.take_flags(DescriptorFlags::DEFERRED);
        let mut list = self.deferred.lock(self.platform);
        let (next, previous) = (folio.next.load(Ordering::Relaxed), folio.previous.load(Ordering::Relaxed));
        debug_assert!(previous != 0 || list.first == u64::from(number.0) + 1);
        match self.link_of(previous) {
            Some(before) => before.folio().next.store(next, Ordering::Relaxed),
            None => list.first = next,
        }
        match self.link_of(next) {
            Some(behind) => behind.folio().previous.store(previous, Ordering::Relaxed),
            None => list.last = previous,
        }
        list.count -= 1;
    }

    fn link_of(&self, link: u64) -> Option<&Block> {
        link.checked_sub(1).map(|number| self.memmap.block(BlockNumber(number as u32)))
    }

    fn forget_if_deferred(&self, number: BlockNumber) {
        let block = self.memmap.block(number);
        block.lock(self.platform);
        if block.state() == BlockState::Folio {
            self.forget_deferred(number, block);
        }
        block.unlock(self.platform);
    }
}
