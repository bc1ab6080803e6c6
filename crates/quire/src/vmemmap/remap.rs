//! Optimises or restores one huge page. A [`Gather`] collects what to flush and to free afterwards.

use core::sync::atomic::Ordering;

use super::Window;
use super::chain::FrameChain;
use super::descriptor::{WORDS, descriptor_addr};
use super::tables::{READ_ONLY, WRITABLE, WindowLeaf};
use super::write::{frames_of, write_tail};
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, Level};
use crate::error::AllocError;
use crate::limits::{FRAME_SIZE, TABLE_ENTRIES, WINDOW_DESCRIPTORS};
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::{TablePlatform, TouchHint};
use crate::stats::Stat;
use crate::tlb::words::words;

/// The addresses that changed and are not flushed yet, and the frames to free after the flush.
#[derive(Default)]
pub(super) struct Gather {
    pub(super) old: FrameChain,
    changed: Option<VirtRange>,
}

impl Gather {
    /// Notes that the translations of these addresses changed.
    pub(super) fn change(&mut self, range: VirtRange) {
        self.changed = Some(match self.changed {
            Some(all) => VirtRange::new(all.start.min(range.start), all.end.max(range.end)),
            None => range,
        });
    }

    /// The addresses to flush, if any; forgets them.
    pub(super) fn take_changed(&mut self) -> Option<VirtRange> {
        self.changed.take()
    }
}

/// The addresses of a page's descriptors.
pub(super) fn extent_of(page: Frame, order: Order) -> VirtRange {
    VirtRange::from_len(descriptor_addr(page), frames_of(order) * FRAME_SIZE)
}

impl Window {
    /// Splits every leaf of 2 MiB that maps a page's descriptors.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; some may be split.
    pub(super) fn split_for<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        gather: &mut Gather,
    ) -> Result<(), AllocError> {
        let (extent, leaf) = (extent_of(page, order), Level::PMD.entry_bytes());
        let mut addr = extent.start.align_down(leaf);
        while addr < extent.end {
            if self.split(pages, addr)? {
                gather.change(VirtRange::from_len(addr, leaf));
            }
            addr = addr.add(leaf);
        }
        Ok(())
    }

    /// Lets the first frame of a page's descriptors, which is written, stand for all, or the frame of tails
    /// that all pages share for all others; the others wait in `gather`.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], for a leaf to split or the shared frame; no translation has changed then.
    pub(super) fn optimise<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        gather: &mut Gather,
    ) -> Result<(), AllocError> {
        self.split_for(pages, page, order, gather)?;
        let shared = if self.shares_tails() { Some(self.shared_tail(pages, page, order)?) } else { None };
        self.set_optimised(pages, page, order, true);
        let kept = self.refresh(pages, page, gather);
        let tails = shared.unwrap_or(kept);
        self.each_tail_slot(pages.platform(), page, order, |slot| {
            gather.old.push(pages, slot.load().frame());
            slot.store(Entry::leaf(tails, PageSize::Size4K, READ_ONLY));
        });
        gather.change(extent_of(page, order));
        pages.count(Stat::VmemmapEntry, frames_of(order) - 1);
        Ok(())
    }

    /// Moves the first frame of the descriptors to a fresh one, so that the folio that it is part of can be
    /// freed whole; without memory it stays. Returns the frame that is kept.
    fn refresh<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        gather: &mut Gather,
    ) -> Frame {
        let slot = self.slot(pages.platform(), window_page(page, 0));
        let old = slot.load().frame();
        let Ok((fresh, _)) = pages.requests().alloc_described(self.gfp_at(pages, page)) else {
            return old;
        };
        let from = FrameRange::folio(old, Order::FRAME);
        // SAFETY: invariant 1: this task has just allocated the target. The source is a frame of the window's.
        unsafe { pages.frames().copy_frames(from, fresh.frame(), TouchHint::Soon) };
        let fresh = fresh.into_raw();
        slot.store(Entry::leaf(fresh, PageSize::Size4K, WRITABLE));
        gather.old.push(pages, old);
        self.frames.fetch_add(1, Ordering::Relaxed);
        pages.count(Stat::VmemmapAlloc, 1);
        pages.count(Stat::VmemmapEntry, 1);
        pages.count(Stat::VmemmapWrite, WINDOW_DESCRIPTORS);
        fresh
    }

    /// Gives each of a page's descriptors memory of its own again.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; nothing has changed then.
    pub(super) fn restore<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        gather: &mut Gather,
    ) -> Result<(), AllocError> {
        let missing = frames_of(order) - 1;
        let mut frames = self.take_frames(pages, page, missing)?;
        let platform = pages.platform();
        // What all of them show: the head's own frame, or the shared one.
        let shown = self.slot(platform, window_page(page, 1)).load().frame();
        let (head, named) = (Self::head_for(pages, page, order), self.named_by_tails(page, order));
        self.each_tail_slot(platform, page, order, |slot| {
            let Some(frame) = frames.pop(pages) else { return };
            // SAFETY: invariant 1: the chain of frames that were just allocated owned this one.
            unsafe {
                pages.frames().copy_frames(FrameRange::folio(shown, Order::FRAME), frame, TouchHint::Soon)
            };
            // A copy of the head becomes a tail; all other descriptors are right as they are.
            if let Some(first) = words(platform, frame).as_chunks::<WORDS>().0.first() {
                write_tail(first, named, head);
            }
            slot.store(Entry::leaf(frame, PageSize::Size4K, WRITABLE));
        });
        self.set_optimised(pages, page, order, false);
        gather.change(extent_of(page, order));
        self.frames.fetch_add(missing, Ordering::Relaxed);
        pages.count(Stat::VmemmapAlloc, missing);
        pages.count(Stat::VmemmapEntry, missing);
        pages.count(Stat::VmemmapWrite, missing * WINDOW_DESCRIPTORS);
        Ok(())
    }

    /// Calls `act` with the leaf of each frame that a page's descriptors fill, except the first; all are
    /// split.
    fn each_tail_slot<P: TablePlatform>(
        &self,
        platform: &P,
        page: Frame,
        order: Order,
        mut act: impl FnMut(WindowLeaf<'_>),
    ) {
        let mut at = 1;
        while at < frames_of(order) {
            let WindowLeaf { table, index } = self.slot(platform, window_page(page, at));
            debug_assert_eq!(table.level(), Level::PTE);
            let here = (TABLE_ENTRIES - index).min((frames_of(order) - at) as usize);
            (index..index + here).for_each(|index| act(WindowLeaf { table, index }));
            at += here as u64;
        }
    }

    /// Allocates single frames near a page, all or none.
    fn take_frames<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        count: u64,
    ) -> Result<FrameChain, AllocError> {
        let (gfp, mut frames) = (self.gfp_at(pages, page), FrameChain::default());
        while frames.len() < count {
            match pages.requests().alloc_described(gfp) {
                Ok((folio, _)) => frames.push(pages, folio.into_raw()),
                Err(error) => {
                    frames.free(pages);
                    return Err(error);
                }
            }
        }
        Ok(frames)
    }

    /// The request for the window's frames: preferably on the page's node.
    pub(super) fn gfp_at<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame) -> Gfp {
        let node = pages.store().node_of_frame(page);
        // The running CPU's own node has the shorter path.
        if pages.requests().nodes_by_distance().next() == Some(node) {
            Gfp::KERNEL
        } else {
            Gfp::KERNEL.on_node(node)
        }
    }
}

/// The address of one of the window's frames that a page's descriptors fill.
fn window_page(page: Frame, at: u64) -> VirtAddr {
    descriptor_addr(page.add(at * WINDOW_DESCRIPTORS))
}
