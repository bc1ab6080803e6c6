//! Code that has interrupted the user of its own CPU's lists.
//!
//! It waits for nothing: allocations go to the store and skip what is locked, frees go onto the CPU's deferred stack,
//! linked through the folios' descriptors, and are done by the next undisturbed call that goes the long way.

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::gfp::Gfp;
use super::pcp::CpuLists;
use super::search::Search;
use super::zone::Zone;
use crate::addr::{Frame, Order};
use crate::cpu::CpuId;
use crate::error::FreeError;
use crate::memmap::DescriptorFlags;
use crate::platform::Platform;

impl<P: Platform> PageAllocator<'_, P> {
    /// Takes a folio for a nested context: from the store, waiting for nothing.
    #[cold]
    pub(super) fn take_nested(&self, zone: &Zone, cpu: CpuId, order: Order, gfp: Gfp) -> Option<Frame> {
        if zone.allowance(gfp.urgency, gfp.zone) < order.frames() {
            return None;
        }
        if order >= Order::BLOCK {
            return self.take_whole(zone, order, false);
        }
        let search =
            Search { mobility: gfp.mobility, order, home: cpu.index() % zone.shards.len(), wait: false };
        let mut frame = [Frame(0)];
        (self.store_take(zone, search, &mut frame) == 1).then_some(frame[0])
    }

    /// Puts a folio that a nested context frees onto the CPU's deferred stack: nothing is waited for.
    #[cold]
    pub(super) fn defer_free(&self, lists: &CpuLists, frame: Frame, order: Order) -> Result<(), FreeError> {
        let block = self.memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        let descriptor = if order >= Order::BLOCK {
            self.check_whole(block, frame, order)?;
            block.folio()
        } else {
            self.check_small(block, frame, order)?;
            self.memmap.descriptor_in(self.platform, block, frame)
        };
        if descriptor.has(DescriptorFlags::LISTED) {
            return Err(FreeError::DoubleFree);
        }
        descriptor.set_flags(DescriptorFlags::LISTED);
        descriptor.word.store(order.get().into(), Ordering::Relaxed);
        let mut top = lists.deferred.load(Ordering::Relaxed);
        loop {
            descriptor.next.store(top, Ordering::Relaxed);
            match lists.deferred.compare_exchange_weak(top, frame.0 + 1, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => top = now,
            }
        }
    }

    /// Frees what nested contexts deferred. The lists are claimed.
    #[cold]
    #[inline(never)]
    pub(super) fn free_deferred(&self, lists: &CpuLists) {
        let mut top = lists.deferred.swap(0, Ordering::Acquire);
        while let Some(frame) = top.checked_sub(1).map(Frame) {
            let descriptor = self.folio_descriptor(frame);
            top = descriptor.next.load(Ordering::Relaxed);
            let order = Order::new(descriptor.word.load(Ordering::Relaxed) as u8).unwrap_or(Order::FRAME);
            descriptor.clear_flags();
            // It was checked when it was deferred, and nobody has owned it since.
            let freed = self.store_free(frame, order);
            debug_assert_eq!(freed, Ok(()));
        }
    }
}
