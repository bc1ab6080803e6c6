//! Gives the running context access to its CPU's lists.
//!
//! A task or an interrupt uses the first level whose lease is free: an interrupt that came while other code
//! was inside a level uses the next one. (With the feature `published`, `guarded.rs` has other ways.)
//!
//! An interrupt may have interrupted the holder of any lock on its own CPU, so it waits for none. It skips
//! what is locked, and puts folios that it cannot give back onto the CPU's *deferred* stack, which the next
//! task on the slow path empties.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::error::FreeError;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{CpuLists, Level};
#[cfg(feature = "published")]
use crate::platform::ListGuard;
use crate::platform::{Context, FramePlatform};
use crate::stats::Stat;

/// What is stored about a folio on a deferred stack.
struct Deferred<'a> {
    /// The next folio's number plus one.
    next: &'a AtomicU64,
    order: &'a AtomicU64,
}

pub(in crate::page_alloc) struct ListAccess<'a> {
    pub(in crate::page_alloc) cpu: CpuId,
    pub(in crate::page_alloc) lists: &'a CpuLists,
    /// The number of the level whose lease it has.
    pub(in crate::page_alloc) level: Option<usize>,
    /// Whether it may wait for locks.
    pub(in crate::page_alloc) wait: bool,
    #[cfg(feature = "published")]
    pub(in crate::page_alloc) restore: Option<bool>,
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
            level.lease.release();
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
            self.frames().mark_free(block, frame, order, false);
            self.defer(lists, frame, order);
            return Ok(());
        }
        self.frames().check_listable(block, frame, order)?;
        self.frames().mark_free(block, frame, order, false);
        self.frames().note_freed(FrameRange::folio(frame, order));
        if !self.frames().in_store(|| self.store.try_put_one(frame, order)) {
            self.defer(lists, frame, order);
        }
        Ok(())
    }

    fn defer(&self, lists: &CpuLists, frame: Frame, order: Order) {
        let folio = self.deferred_folio(frame);
        folio.order.store(order.get().into(), Ordering::Relaxed);
        lists.deferred_frames.fetch_add(order.frames(), Ordering::Relaxed);
        lists.deferred.push(frame.0, folio.next);
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
        while let Some(frame) = taken.next(|number| self.deferred_folio(Frame(number)).next).map(Frame) {
            let order = self.deferred_folio(frame).order.load(Ordering::Relaxed);
            let order = Order::new(order as u8).unwrap_or(Order::FRAME);
            lists.deferred_frames.fetch_sub(order.frames(), Ordering::Relaxed);
            // The folio was checked when it was deferred, and has had no owner since.
            if order >= Order::BLOCK {
                self.store.put_whole(frame.block(), order);
            } else {
                self.store.put_one(frame, order);
            }
        }
    }

    /// Where the link and the order of a deferred folio are: in a folio of whole blocks' descriptor, or at
    /// the start of a smaller one.
    fn deferred_folio(&self, frame: Frame) -> Deferred<'_> {
        let block = self.frames().memmap.block(frame.block());
        if block.columns().is_none() {
            return Deferred { next: &block.folio().next, order: &block.folio().word };
        }
        let start = self.platform().direct_map(frame.addr()).cast::<[AtomicU64; 2]>();
        // SAFETY: G1: a deferred folio is free memory that only the stack names, and these are atomics.
        let [next, order] = unsafe { &*start };
        Deferred { next, order }
    }
}
