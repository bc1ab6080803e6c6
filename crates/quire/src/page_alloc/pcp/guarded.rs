//! Published ways to keep interrupts out of the per-CPU lists, for comparison.
//!
//! | [`ListGuard`] | task | interrupt |
//! |---|---|---|
//! | `IrqOff` | interrupts off, then the first level | the same, so it never finds it taken |
//! | `TaskOnly` | the first level; interrupts off around every visit to the store | straight to the store |
//!
//! Where the platform names the guard ([`FramePlatform::LIST_GUARD`]), the common path is inlined into
//! callers, so that its only added cost is the guard. Where
//! [`AllocatorConfig::lists`](crate::page_alloc::AllocatorConfig::lists) does, as in tests that try all ways
//! on one machine, the lists are shut to the common path, and the slow path begins here.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::memmap::{BlockState, FrameState};
use crate::nodes::NodePolicy;
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::{CpuLists, Level, list_of, order_of};
use crate::page_alloc::pcp::list::add_own;
use crate::page_alloc::pcp::list_access::ListAccess;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::platform::{Context, FramePlatform, ListGuard};

/// The guard in force: the platform's, or the configured one.
#[inline(always)]
pub(in crate::page_alloc) fn guard_of<P: FramePlatform>(configured: ListGuard) -> ListGuard {
    match P::LIST_GUARD {
        ListGuard::Reentry => configured,
        guard => guard,
    }
}

/// Whether the common path may use lists under this guard; one that the platform names is part of that path.
#[inline(always)]
pub(in crate::page_alloc) fn are_open<P: FramePlatform>(guard: ListGuard) -> bool {
    P::LIST_GUARD != ListGuard::Reentry || guard == ListGuard::Reentry
}

impl<P: FramePlatform> Lists<'_, P> {
    /// Runs the common path under the platform's guard, if that admits the running context.
    #[inline(always)]
    pub(in crate::page_alloc) fn under_guard<R: Default>(&self, usage: impl FnOnce() -> R) -> R {
        match P::LIST_GUARD {
            ListGuard::Reentry => usage(),
            ListGuard::IrqOff => {
                let state = self.platform().interrupts_off();
                let result = usage();
                self.platform().interrupts_restore(state);
                result
            }
            ListGuard::TaskOnly if self.platform().context() == Context::Task => usage(),
            ListGuard::TaskOnly => R::default(),
        }
    }

    /// In the slow path, takes a listed folio of the zone that served last under the configured guard. `None`:
    /// continue.
    pub(in crate::page_alloc) fn take_guarded(&self, cpu: CpuId, gfp: Gfp, order: Order) -> Option<Frame> {
        let number = list_of(order, gfp.mobility).filter(|_| gfp.nodes == NodePolicy::Local)?;
        let level = &self.lists_of(cpu).levels[0];
        let list = level.serving_list(gfp.zone, number);
        let popped = self.guarded(level, || {
            let popped = list.pop()?;
            add_own(&list.allocated, 1);
            Some(popped)
        })?;
        let zeroed = gfp.contents == Contents::Zeroed && FrameState::of(popped.1).is_zeroed();
        self.frames().mark_in_use(popped.0, popped.1, order_of(number), zeroed);
        Some(popped.0)
    }

    /// In the same way puts a folio that was never mapped or held onto its list. `false`: continue.
    pub(in crate::page_alloc) fn put_guarded(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let Some(block) = self.frames().memmap.get(frame.block()) else { return false };
        let Some((list_at, state)) = self.frames().list_of_untouched(block, frame, order) else {
            return false;
        };
        let lists = self.lists_of(cpu);
        let level = &lists.levels[0];
        let put = self.guarded(level, || {
            lists.empty.store(false, Ordering::Relaxed);
            level.list_at(list_at).push(frame, state).then(|| {
                FrameState::FREE.put(state);
                if order == Order::BLOCK {
                    block.set_state(BlockState::Listed);
                }
                self.frames().note_freed(FrameRange::new(frame, order.frames()));
            })
        });
        put.is_some()
    }

    /// Uses a level's lists under the configured guard, if that admits the running context.
    fn guarded<R>(&self, level: &Level, usage: impl FnOnce() -> Option<R>) -> Option<R> {
        let inside = || {
            let result = level.lease.enter_guarded().then(usage)?;
            level.lease.release();
            result
        };
        match self.frames().guard {
            ListGuard::Reentry => None,
            ListGuard::IrqOff => self.frames().with_interrupts_off(inside),
            ListGuard::TaskOnly if self.platform().context() == Context::Task => inside(),
            ListGuard::TaskOnly => None,
        }
    }

    /// As [`Self::begin`], under one of these guards.
    pub(in crate::page_alloc) fn begin_guarded<'a>(
        &self,
        cpu: CpuId,
        lists: &'a CpuLists,
        wait: bool,
    ) -> ListAccess<'a> {
        let restore = (self.frames().guard == ListGuard::IrqOff).then(|| self.platform().interrupts_off());
        let allowed = restore.is_some() || wait;
        let level = (allowed && lists.levels[0].lease.enter_guarded()).then_some(0);
        ListAccess { cpu, lists, level, wait, restore }
    }
}
