//! The common paths of allocation and free, which are inlined into callers.

use core::sync::atomic::AtomicU8;

use crate::addr::{Frame, FrameRange, Order};
use crate::cpu::CpuId;
use crate::memmap::{Block, BlockState, FrameState, LIST_BYTES};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::pcp::level::{CpuLists, HUGE, ZoneLists};
use crate::page_alloc::pcp::list::add_own;
use crate::page_alloc::request::gfp::ZoneKind;
use crate::platform::FramePlatform;
#[cfg(feature = "published")]
use crate::platform::ListGuard;

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// What a CPU keeps for itself.
    #[inline(always)]
    pub(in crate::page_alloc) fn lists_of(&self, cpu: CpuId) -> &CpuLists {
        debug_assert!(cpu.index() < self.cpus.len());
        // SAFETY: G4: a platform names its CPUs by numbers below `cpu_count`, which is how many entries there are.
        unsafe { self.cpus.as_slice().get_unchecked(cpu.index()) }
    }

    /// The common case of an allocation, and all that is inlined into callers: the list of the CPU's first zone has a
    /// folio. `None`: take the slow path. The folio's state is what it was on the list.
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
        let list = level.first_list(kind, number);
        if !level.lease.enter_open() {
            return None;
        }
        let popped = list.pop_open();
        if popped.is_some() {
            add_own(&list.allocated, 1);
        }
        level.lease.leave();
        popped
    }

    /// The common case of a free: a folio that was never mapped or held, and room on its list. `false`: take the slow
    /// path, which also finds out what is wrong.
    #[inline(always)]
    pub(in crate::page_alloc) fn put_untouched(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let block = self.memmap.get_main(frame.block());
        block.is_some_and(|block| self.put_untouched_of(cpu, block, frame, order))
    }

    /// As [`Self::put_untouched`], for a block whose record is not one of the longest run.
    pub(in crate::page_alloc) fn put_untouched_far(&self, cpu: CpuId, frame: Frame, order: Order) -> bool {
        let far = self.memmap.get_main(frame.block()).is_none();
        let block = self.memmap.get(frame.block()).filter(|_| far);
        block.is_some_and(|block| self.put_untouched_of(cpu, block, frame, order))
    }

    /// `block` is the record of the frame's block.
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
        let Some((list_at, state)) = self.list_of_untouched(block, frame, order) else { return false };
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
            self.note_freed(FrameRange::new(frame, order.frames()));
        }
        level.lease.leave();
        put
    }

    /// Where the list of a folio that needs no check begins among those of all zones, in bytes, and where its state stands.
    /// `block` is the record of the frame's block.
    #[inline(always)]
    pub(in crate::page_alloc) fn list_of_untouched<'b>(
        &self,
        block: &'b Block,
        frame: Frame,
        order: Order,
    ) -> Option<(usize, &'b AtomicU8)> {
        let (list_at, state) = match order.get() {
            small @ 0..=3 => {
                // SAFETY: M2: the record is that of the frame's block.
                let state = unsafe { block.state_cell(frame) }?;
                (block.lists_at() + usize::from(small) * (3 * LIST_BYTES), state)
            }
            9 if frame.index_in_block() == 0 => {
                let zone_at = block.lists_at() & !(size_of::<ZoneLists>() - 1);
                (zone_at + HUGE * LIST_BYTES, block.folio_state_cell())
            }
            _ => return None,
        };
        (FrameState::of(state) == FrameState::in_use(order)).then_some((list_at, state))
    }

    /// A folio leaves a list for its owner; `zeroed` says that it is zero, to an owner that asks. `state` is its own.
    #[inline(always)]
    pub(in crate::page_alloc) fn mark_in_use(
        &self,
        frame: Frame,
        state: &AtomicU8,
        order: Order,
        zeroed: bool,
    ) {
        if order == Order::BLOCK
            && let Some(block) = self.memmap.get(frame.block())
        {
            block.set_state(BlockState::Folio);
        }
        FrameState::in_use(order).with_zeroes(zeroed).put(state);
    }

    /// A folio comes to a list, or goes back to the store, known to be zero or not: freeing it again is refused.
    pub(in crate::page_alloc) fn mark_free(&self, block: &Block, frame: Frame, order: Order, zeroed: bool) {
        FrameState::FREE.with_zeroes(zeroed).put(self.state_cell(block, frame));
        if order >= Order::BLOCK {
            block.set_state(BlockState::Listed);
        }
    }

    /// Where the state of a folio stands.
    #[inline]
    pub(in crate::page_alloc) fn state_cell<'b>(&self, block: &'b Block, frame: Frame) -> &'b AtomicU8 {
        match block.area() {
            Some(area) => area.state_cell(frame.index_in_block()),
            None => block.folio_state_cell(),
        }
    }
}
