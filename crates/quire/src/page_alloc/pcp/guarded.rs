//! The common case under the guards that are here to be compared with: the same lists, found shut by the inlined path,
//! used with interrupts off or by tasks alone. Nothing else stands in front of it, so that what it costs is the guard.

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::memmap::{BlockState, FrameState};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::init::config::ListGuard;
use crate::page_alloc::pcp::level::{Level, list_of, order_of};
use crate::page_alloc::pcp::list::add_own;
use crate::page_alloc::request::gfp::{Contents, Gfp, NodePolicy};
use crate::platform::{Context, FramePlatform};

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// Takes a folio from the list of the CPU's first zone. `None`: go the long way.
    #[inline]
    pub(in crate::page_alloc) fn take_guarded(&self, cpu: CpuId, gfp: Gfp, order: Order) -> Option<Frame> {
        let number = list_of(order, gfp.mobility).filter(|_| gfp.nodes == NodePolicy::Local)?;
        let level = &self.lists_of(cpu).levels[0];
        let list = level.first_list(gfp.zone, number);
        let popped = self.guarded(level, || {
            let popped = list.pop()?;
            add_own(&list.allocated, 1);
            Some(popped)
        })?;
        let zeroed = gfp.contents == Contents::Zeroed && FrameState::of(popped.1).is_zeroed();
        self.mark_in_use(popped.0, popped.1, order_of(number), zeroed);
        Some(popped.0)
    }

    /// Puts a folio that was never mapped or held onto its list. `false`: go the long way.
    #[inline]
    pub(in crate::page_alloc) fn put_guarded(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let Some(block) = self.memmap.get(frame.block()) else { return false };
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
    #[inline]
    fn guarded<R>(&self, level: &Level, usage: impl FnOnce() -> Option<R>) -> Option<R> {
        let inside = || {
            let result = level.lease.enter_guarded().then(usage)?;
            level.lease.leave();
            result
        };
        match self.guard {
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
}
