//! Folios of whole blocks that belong to a pool of huge pages, whether somebody uses them or not.
//!
//! The pool *holds* them, so that no count that falls to zero frees one, and their descriptors say what they are.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::PageAllocator;
use super::whole::blocks_of;
use crate::addr::{Frame, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{BlockState, DescriptorFlags, FrameState};
use crate::platform::Platform;

impl<P: Platform> PageAllocator<'_, P> {
    /// Makes a folio of whole blocks that the caller was just handed one of a pool. It leaves the pool, and is free, by
    /// [`Self::release`] of its first frame.
    pub fn make_huge(&self, frame: Frame) {
        let block = self.memmap.block(frame.block());
        block.lock(self.platform);
        block.folio().reset();
        block.folio().set_flags(DescriptorFlags::HUGE);
        block.held.insert_run(0, 1);
        FrameState::UNKNOWN.put(block.folio_state_cell());
        block.unlock(self.platform);
    }

    /// Whether a folio of this order that belongs to a pool starts at the frame.
    pub fn is_huge(&self, frame: Frame, order: Order) -> bool {
        let Some(block) = self.memmap.get(frame.block()).filter(|_| frame.index_in_block() == 0) else {
            return false;
        };
        block.state() == BlockState::Folio
            && block.order.load(Ordering::Relaxed) == order.get()
            && block.held.contains(0)
            && block.folio().has(DescriptorFlags::HUGE)
    }

    /// Makes a free page of a pool of 1 GiB 512 of 2 MiB. The caller has it to itself.
    pub fn split_huge(&self, frame: Frame) {
        debug_assert!(self.is_huge(frame, Order::GIGANTIC));
        self.reshape(frame, |_| (BlockState::Folio, Order::BLOCK));
        let parts = 1..u64::from(blocks_of(Order::GIGANTIC));
        parts.for_each(|at| self.make_huge(frame.add(at * BLOCK_FRAMES as u64)));
    }

    /// Makes 512 free pages of a pool of 2 MiB in a row one of 1 GiB. The caller has them to itself.
    pub fn join_huge(&self, frame: Frame) {
        self.reshape(frame, |at| {
            (if at == 0 { BlockState::Folio } else { BlockState::FolioTail }, Order::GIGANTIC)
        });
    }

    /// Gives each block of a page of 1 GiB its place in folios of a pool, the first one last.
    fn reshape(&self, frame: Frame, shape: impl Fn(u32) -> (BlockState, Order)) {
        for at in (0..blocks_of(Order::GIGANTIC)).rev() {
            let block = self.memmap.block(frame.block().add(at));
            let (state, order) = shape(at);
            block.lock(self.platform);
            if state == BlockState::FolioTail {
                block.folio().clear_flags();
                block.held.remove_run(0, 1);
            }
            block.order.store(order.get(), Ordering::Relaxed);
            block.set_state(state);
            block.unlock(self.platform);
        }
    }

    /// The node that a frame belongs to.
    pub fn node_of_frame(&self, frame: Frame) -> u8 {
        self.zones[self.memmap.block(frame.block()).zone()].node
    }
}
