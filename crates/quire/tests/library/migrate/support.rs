//! Helpers of the tests of moves.

use hosted::Hosted;
use quire::addr::{Frame, VirtAddr};
use quire::page_alloc::PageAllocator;

use crate::migrate::world::Space;

pub(crate) const PAGE: u64 = 4096;

/// The frame that an address translates to, whether its CPU may use it now or not.
pub(crate) fn frame_at(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Frame {
    let leaf = machine.probe(mm.root(), VirtAddr(addr)).expect("mapped");
    leaf.frame.add((addr - leaf.addr.0) / PAGE)
}

/// The same, if anything is mapped there.
pub(crate) fn find_frame(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<Frame> {
    machine.probe(mm.root(), VirtAddr(addr)).map(|leaf| leaf.frame.add((addr - leaf.addr.0) / PAGE))
}

pub(crate) fn head_of(pages: &PageAllocator<'_, Hosted>, frame: Frame) -> Frame {
    let block = frame.block();
    (0..=frame.index_in_block())
        .rev()
        .map(|at| block.first_frame().add(at as u64))
        .find(|&head| pages.frames().next_movable(block, head.index_in_block()) == Some(head))
        .unwrap_or(frame)
}
