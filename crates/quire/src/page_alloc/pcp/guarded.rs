//! Published ways to keep interrupts out of the per-CPU lists, to measure the library's own against.
//!
//! | [`ListGuard`] | task | interrupt |
//! |---|---|---|
//! | `IrqOff` | interrupts off, then the first level | the same, so it never finds it taken |
//! | `TaskOnly` | the first level; interrupts off around every visit to the store | straight to the store |
//!
//! Where the platform names the guard ([`FramePlatform::LIST_GUARD`]), the common path is inlined into callers, so that
//! what it costs is the guard. Where [`AllocatorConfig::lists`](crate::page_alloc::AllocatorConfig::lists) does, as in
//! tests that try all ways on one machine, the lists are shut to the common path, and the slow path begins here.
#![forbid(unsafe_code)]

use core::sync::atomic::AtomicU8;

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::pcp::level::{CpuLists, Level, list_of, order_of};
use crate::page_alloc::pcp::list::add_own;
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::request::gfp::{Contents, Gfp, NodePolicy, ZoneKind};
use crate::platform::{Context, FramePlatform, ListGuard};

/// The guard of an allocator on this platform, which was configured so.
#[inline(always)]
pub(in crate::page_alloc) fn guard_of<P: FramePlatform>(configured: ListGuard) -> ListGuard {
    match P::LIST_GUARD {
        ListGuard::Reentry => configured,
        guard => guard,
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Takes a folio from the list of the CPU's first zone, in the slow path. `None`: go on with it.
    #[inline]
    pub(in crate::page_alloc) fn take_guarded(&self, cpu: CpuId, gfp: Gfp, order: Order) -> Option<Frame> {
        if P::LIST_GUARD != ListGuard::Reentry {
            // The common path has tried.
            return None;
        }
        let number = list_of(order, gfp.mobility).filter(|_| gfp.nodes == NodePolicy::Local)?;
        let (frame, state) = self.take_listed_guarded(cpu, number, gfp.zone)?;
        let zeroed = gfp.contents == Contents::Zeroed && FrameState::of(state).is_zeroed();
        self.mark_in_use(frame, state, order_of(number), zeroed);
        Some(frame)
    }

    /// Puts a folio that was never mapped or held onto its list, in the slow path. `false`: go on with it.
    #[inline]
    pub(in crate::page_alloc) fn put_guarded(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        if P::LIST_GUARD != ListGuard::Reentry {
            return false;
        }
        let block = self.memmap.get(frame.block());
        block.is_some_and(|block| self.put_untouched_guarded(cpu, block, frame, order))
    }

    /// The common path of an allocation.
    #[inline(always)]
    pub(in crate::page_alloc) fn take_listed_guarded(
        &self,
        cpu: CpuId,
        number: usize,
        kind: ZoneKind,
    ) -> Option<(Frame, &AtomicU8)> {
        let level = &self.lists_of(cpu).levels[0];
        let list = level.first_list(kind, number);
        self.guarded(level, || {
            let popped = list.pop()?;
            add_own(&list.allocated, 1);
            Some(popped)
        })
    }

    /// The common path of a free.
    #[inline(always)]
    pub(in crate::page_alloc) fn put_untouched_guarded(
        &self,
        cpu: CpuId,
        block: &Block,
        frame: Frame,
        order: Order,
    ) -> bool {
        let Some((list_at, state)) = self.list_of_untouched(block, frame, order) else { return false };
        let level = &self.lists_of(cpu).levels[0];
        let put = self.guarded(level, || {
            level.list_at(list_at).push(frame, state).then(|| {
                FrameState::FREE.put(state);
                if order == Order::BLOCK {
                    block.set_state(BlockState::Listed);
                }
                self.note_freed(FrameRange::new(frame, order.frames()));
            })
        });
        put.is_some()
    }

    /// Uses a level's lists as the guard wants it, if it lets the running context.
    #[inline(always)]
    fn guarded<R>(&self, level: &Level, usage: impl FnOnce() -> Option<R>) -> Option<R> {
        let inside = || {
            let result = level.lease.enter_guarded().then(usage)?;
            level.lease.leave();
            result
        };
        match guard_of::<P>(self.guard) {
            ListGuard::Reentry => None,
            ListGuard::IrqOff => {
                let state = self.platform.interrupts_off();
                let result = inside();
                self.platform.interrupts_restore(state);
                result
            }
            ListGuard::TaskOnly if self.platform.context() == Context::Task => inside(),
            ListGuard::TaskOnly => None,
        }
    }

    /// Begins a turn under one of these guards.
    pub(in crate::page_alloc) fn begin_guarded<'a>(
        &self,
        cpu: CpuId,
        lists: &'a CpuLists,
        wait: bool,
    ) -> ListAccess<'a> {
        let restore = (self.guard == ListGuard::IrqOff).then(|| self.platform.interrupts_off());
        let allowed = restore.is_some() || wait;
        let level = (allowed && lists.levels[0].lease.enter_guarded()).then_some(0);
        ListAccess { cpu, lists, level, wait, restore }
    }

    /// Does something with interrupts off.
    pub(in crate::page_alloc) fn with_interrupts_off<R>(&self, visit: impl FnOnce() -> R) -> R {
        let state = self.platform.interrupts_off();
        let result = visit();
        self.platform.interrupts_restore(state);
        result
    }
}
