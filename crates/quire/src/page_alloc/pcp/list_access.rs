//! Gives the running context access to its CPU's lists.
//!
//! A task or an interrupt uses the first level whose lease is free: an interrupt that came while other code
//! was inside a level uses the next one. (With the feature `published`, `guarded.rs` has other ways.)
//!
//! An interrupt may have interrupted the holder of any lock on its own CPU, so it waits for none. It skips
//! what is locked, and puts folios that it cannot give back onto the CPU's *deferred* stack, which the next
//! task on the slow path empties.

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::error::FreeError;
use crate::memmap::Descriptor;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{CpuLists, Level};
use crate::platform::{Context, FramePlatform};
#[cfg(feature = "published")]
use crate::platform::{InterruptState, ListGuard};
use crate::stats::Stat;

pub(in crate::page_alloc) struct ListAccess<'a> {
    pub(in crate::page_alloc) cpu: CpuId,
    pub(in crate::page_alloc) lists: &'a CpuLists,
    /// The number of the level whose lease it has.
    pub(in crate::page_alloc) level: Option<usize>,
    /// Whether it may wait for locks.
    pub(in crate::page_alloc) wait: bool,
    #[cfg(feature = "published")]
    pub(in crate::page_alloc) restore: Option<InterruptState>,
}

impl<'a> ListAccess<'a> {
    #[inline]
    pub(in crate::page_alloc) fn level(&self) -> Option<&'a Level> {
        self.level.map(|level| &self.lists.levels[level])
    }
}

impl<P: FramePlatform> Lists<'_, P> {
    /// The caller is pinned to `cpu`, and calls [`Self::end`] afterwards.
    #[inline]
    pub(in crate::page_alloc) fn begin(&self, cpu: CpuId) -> ListAccess<'_> {
        let lists = self.lists_of(cpu);
        let wait = self.platform().context() == Context::Task;
        #[cfg(feature = "published")]
        if self.frames().guard != ListGuard::Reentry {
            return self.begin_guarded(cpu, lists, wait);
        }
        let level = lists.levels.iter().position(|level| level.lease.enter());
        if level.is_some_and(|level| level > 0) {
            self.frames().cells(cpu).add(Stat::PcpNested, 1);
        }
        ListAccess {
            cpu,
            lists,
            level,
            wait,
            #[cfg(feature = "published")]
            restore: None,
        }
    }

    #[inline]
    pub(in crate::page_alloc) fn end(&self, access: &ListAccess<'_>) {
        if let Some(level) = access.level() {
            level.lease.leave();
        }
        #[cfg(feature = "published")]
        if let Some(state) = access.restore {
            self.platform().interrupts_restore(state);
        }
    }

    /// Frees a folio without waiting, where no list has room.
    #[cold]
    pub(in crate::page_alloc) fn free_without_waiting(
        &self,
        lists: &CpuLists,
        frame: Frame,
        order: Order,
    ) -> Result<(), FreeError> {
        let block = self.frames().memmap.get(frame.block()).ok_or(FreeError::NotMemory)?;
        if order >= Order::BLOCK {
            self.frames().check_whole(block, frame, order)?;
            let descriptor = block.folio();
            self.frames().mark_free(block, frame, order, false);
            self.defer(lists, frame, order, descriptor);
            return Ok(());
        }
        self.frames().check_listable(block, frame, order)?;
        self.frames().mark_free(block, frame, order, false);
        self.frames().note_freed(FrameRange::folio(frame, order));
        if !self.store.try_put_one(frame, order) {
            self.defer(lists, frame, order, self.frames().memmap.descriptor(frame));
        }
        Ok(())
    }

    fn defer(&self, lists: &CpuLists, frame: Frame, order: Order, descriptor: &Descriptor) {
        descriptor.word.store(order.get().into(), Ordering::Relaxed);
        lists.deferred_frames.fetch_add(order.frames(), Ordering::Relaxed);
        lists.deferred.push(frame.0, &descriptor.next);
    }

    /// Frees what interrupts deferred on this CPU, and drains the further levels, full then. May wait for
    /// locks.
    #[inline]
    pub(in crate::page_alloc) fn clear_up(&self, lists: &CpuLists) {
        if !lists.deferred.is_empty() {
            self.free_deferred(lists);
            self.drain_nested(lists);
        }
    }

    /// Frees the folios deferred on a CPU; any CPU may call. May wait for locks.
    #[cold]
    #[inline(never)]
    pub(in crate::page_alloc) fn free_deferred(&self, lists: &CpuLists) {
        let mut taken = lists.deferred.take();
        while let Some(frame) = taken.next(|number| &self.deferred_descriptor(Frame(number)).next).map(Frame)
        {
            let word = self.deferred_descriptor(frame).word.load(Ordering::Relaxed);
            let order = Order::new(word as u8).unwrap_or(Order::FRAME);
            lists.deferred_frames.fetch_sub(order.frames(), Ordering::Relaxed);
            // The folio was checked when it was deferred, and has had no owner since.
            if order >= Order::BLOCK {
                self.store.put_whole(frame.block(), order);
            } else {
                self.store.put_one(frame, order);
            }
        }
    }

    fn deferred_descriptor(&self, frame: Frame) -> &Descriptor {
        let block = self.frames().memmap.block(frame.block());
        if block.area().is_some() { self.frames().memmap.descriptor(frame) } else { block.folio() }
    }
}
