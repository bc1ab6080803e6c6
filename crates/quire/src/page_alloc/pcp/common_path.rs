//! The common paths of allocation and free, which are inlined into callers.

use core::sync::atomic::AtomicU8;

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::memmap::{Block, BlockState, FrameState};
use crate::page_alloc::pcp::Lists;
use crate::page_alloc::pcp::level::CpuLists;
use crate::page_alloc::pcp::list::add_own;
use crate::page_alloc::request::gfp::ZoneKind;
use crate::platform::FramePlatform;
#[cfg(feature = "published")]
use crate::platform::ListGuard;

impl<P: FramePlatform> Lists<'_, P> {
    #[inline(always)]
    pub(in crate::page_alloc) fn lists_of(&self, cpu: CpuId) -> &CpuLists {
        debug_assert!(cpu.index() < self.cpus.len());
        // SAFETY: G4: a platform names CPUs by numbers below `cpu_count`, and there are as many entries.
        unsafe { self.cpus.as_slice().get_unchecked(cpu.index()) }
    }

    /// The common allocation, inlined into callers, from the list of the zone that served last; leaves the
    /// folio's state as it is. `None`: take the slow path.
    #[inline(always)]
    pub(in crate::page_alloc) fn take_listed(
        &self,
        cpu: CpuId,
        number: usize,
        kind: ZoneKind,
    ) -> Option<(Frame, &AtomicU8)> {
        #[cfg(feature = "published")]
        if P::LIST_GUARD != ListGuard::Reentry {
            return self.under_guard(|| self.take_open(cpu, number, kind));
        }
        self.take_open(cpu, number, kind)
    }

    /// The same by a context that the guard lets in.
    #[inline(always)]
    fn take_open(&self, cpu: CpuId, number: usize, kind: ZoneKind) -> Option<(Frame, &AtomicU8)> {
        let level = &self.lists_of(cpu).levels[0];
        let list = level.serving_list(kind, number);
        if !level.lease.enter_open() {
            return None;
        }
        let popped = list.pop_open();
        if popped.is_some() {
            add_own(&list.allocated, 1);
        }
        level.lease.release();
        popped
    }

    /// The common free, of a folio never mapped or held. `false`: take the slow path, which finds errors.
    #[inline(always)]
    pub(in crate::page_alloc) fn put_untouched(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        // No closure, which the compiler may leave a call.
        let Some(block) = self.frames().memmap.get_main(frame.block()) else { return false };
        self.put_untouched_of(cpu, block, frame, order)
    }

    /// As [`Self::put_untouched`], for a block whose record is in none of the two longest runs.
    pub(in crate::page_alloc) fn put_untouched_far(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let far = self.frames().memmap.get_main(frame.block()).is_none();
        let block = self.frames().memmap.get(frame.block()).filter(|_| far);
        block.is_some_and(|block| self.put_untouched_of(cpu, block, frame, order))
    }

    #[inline(always)]
    fn put_untouched_of(&self, cpu: CpuId, block: &Block, frame: Frame, order: Order) -> bool {
        #[cfg(feature = "published")]
        if P::LIST_GUARD != ListGuard::Reentry {
            return self.under_guard(|| self.put_open(cpu, block, frame, order));
        }
        self.put_open(cpu, block, frame, order)
    }

    /// The same by a context that the guard lets in.
    #[inline(always)]
    fn put_open(&self, cpu: CpuId, block: &Block, frame: Frame, order: Order) -> bool {
        let Some((list_at, state)) = self.frames().list_of_untouched(block, frame, order) else {
            return false;
        };
        let level = &self.lists_of(cpu).levels[0];
        let list = level.list_at(list_at);
        if !level.lease.enter_open() {
            return false;
        }
        let put = list.push_open(frame, state);
        if put {
            FrameState::FREE.put(state);
            if order == Order::BLOCK {
                block.set_state(BlockState::Listed);
            }
            self.frames().note_freed(FrameRange::new(frame, order.frames()));
        }
        level.lease.release();
        put
    }
}
