//! Folios of order 9 and more that wait to be split: small leaves map some of their frames and no leaf maps
//! the others, which one record cannot mark as free. (Linux: the deferred split queue.)
//!
//! Their folio descriptors link them. The list changes under the folio's block lock, and its own inside.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::memmap::{Block, BlockState, DescriptorFlags};
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;
use crate::stats::Stat;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// How many folios wait to be split.
    pub fn deferred_splits(&self) -> u64 {
        self.deferred.lock(self.platform()).count
    }

    /// Puts a folio of more than one block on the list, if leaves of 2 MiB or less map only some of its
    /// blocks. A block being mapped or unmapped may count as either; the task that unmaps one checks again.
    pub(crate) fn defer_if_partly_mapped(&self, frame: Frame) {
        let (number, block) = (frame.block(), self.frames().memmap.block(frame.block()));
        block.lock(self.platform());
        let order = block.order.load(Ordering::Relaxed);
        let is_mapped = |at: u32| {
            let part = self.frames().memmap.block(number.add(at));
            part.large_maps.load(Ordering::Relaxed) != 0 || part.small_maps(self.platform()).any()
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
        block.unlock(self.platform());
    }

    /// Puts a folio on the list, unless it is there or is being split already. Under the folio's lock.
    pub(in crate::page_alloc) fn defer_split(&self, number: BlockNumber, block: &Block) {
        let folio = block.folio();
        if folio.has(DescriptorFlags::DEFERRED) || folio.has(DescriptorFlags::SPLITTING) {
            return;
        }
        folio.add_flags(DescriptorFlags::DEFERRED);
        let mut list = self.deferred.lock(self.platform());
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
        self.frames().count(Stat::ThpDeferredSplitPage, 1);
    }

    /// Takes a folio off the list, if it is on it. Under the folio's lock.
    #[inline]
    pub(in crate::page_alloc) fn forget_deferred(&self, number: BlockNumber, block: &Block) {
        if block.folio().has(DescriptorFlags::DEFERRED) {
            self.unlist_deferred(number, block);
        }
    }

    #[cold]
    #[inline(never)]
    fn unlist_deferred(&self, number: BlockNumber, block: &Block) {
        let folio = block.folio();
        folio.take_flags(DescriptorFlags::DEFERRED);
        let mut list = self.deferred.lock(self.platform());
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
        link.checked_sub(1).map(|number| self.frames().memmap.block(BlockNumber(number as u32)))
    }

    pub(in crate::page_alloc) fn forget_if_deferred(&self, number: BlockNumber) {
        let block = self.frames().memmap.block(number);
        block.lock(self.platform());
        if block.state() == BlockState::Folio {
            self.forget_deferred(number, block);
        }
        block.unlock(self.platform());
    }
}
