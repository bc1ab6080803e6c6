//! Lent huge pages, which return to their pool when no leaf maps them any more.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{BlockNumber, Frame, Order};
use crate::memmap::{Block, DescriptorFlags};
use crate::page_alloc::frames::huge::is_moving;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

impl<P: FramePlatform> MapCounts<'_, P> {
    /// Whether lent pages wait for their pool.
    #[inline]
    pub(crate) fn has_returned_huge(&self) -> bool {
        !self.returned_huge.is_empty()
    }

    /// Passes each lent page without leaves to `take`: frame, order, and whether its reservation holds again.
    pub(crate) fn returned_huge(&self, mut take: impl FnMut(Frame, Order, bool)) {
        let mut taken = self.returned_huge.take();
        let folio = |number: u64| self.frames().memmap.block(BlockNumber(number as u32)).folio();
        while let Some(number) = taken.next(|number| &folio(number).next) {
            let block = self.frames().memmap.block(BlockNumber(number as u32));
            let order = Order::new(block.order.load(Ordering::Relaxed)).unwrap_or(Order::BLOCK);
            let frame = BlockNumber(number as u32).first_frame();
            take(frame, order, self.frames().take_renewed(frame));
        }
    }

    /// Called when the last leaf of a held folio is gone. Under its block's lock.
    pub(in crate::page_alloc) fn unmapped_while_held(&self, number: BlockNumber, block: &Block) {
        let folio = block.folio();
        if folio.has(DescriptorFlags::LENT) && !is_moving(folio) {
            folio.take_flags(DescriptorFlags::LENT);
            self.returned_huge.push(number.0.into(), &folio.next);
        }
    }
}
