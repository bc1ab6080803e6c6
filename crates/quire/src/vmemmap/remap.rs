//! One huge page is optimised, or restored. What it takes to flush and to free stands in a [`Gather`].

use core::sync::atomic::Ordering;

use super::Window;
use super::chain::FrameChain;
use super::descriptor::{WORDS, descriptor_addr};
use super::tables::{READ_ONLY, Slot, WRITABLE};
use super::write::{frames_of, write_tail};
use crate::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, Level};
use crate::error::AllocError;
use crate::limits::{FRAME_SIZE, TABLE_ENTRIES, WINDOW_DESCRIPTORS};
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::{TablePlatform, TouchHint};
use crate::stats::Stat;
use crate::tlb::words::words;

/// What was changed and is not flushed yet, and the frames that wait for it.
#[derive(Default)]
pub(super) struct Gather {
    pub(super) old: FrameChain,
    changed: Option<VirtRange>,
}

impl Gather {
    /// Notes that translations of these addresses changed.
    pub(super) fn change(&mut self, range: VirtRange) {
        self.changed = Some(match self.changed {
            Some(all) => VirtRange::new(all.start.min(range.start), all.end.max(range.end)),
            None => range,
        });
    }

    /// What is to be flushed, if anything; forgets it.
    pub(super) fn take_changed(&mut self) -> Option<VirtRange> {
        self.changed.take()
    }
}

/// The addresses of a page's descriptors.
pub(super) fn extent_of(page: Frame, order: Order) -> VirtRange {
    VirtRange::from_len(descriptor_addr(page), frames_of(order) * FRAME_SIZE)
}

impl Window {
    /// Splits every leaf of 2 MiB that a page's descriptors stand in.
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

    /// Lets one frame stand for all of a page's descriptors, of which those in the first one are written. The
    /// others wait in `gather` to be freed.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], for a leaf that was to be split; no translation has changed then.
    pub(super) fn optimise<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        gather: &mut Gather,
    ) -> Result<(), AllocError> {
        self.split_for(pages, page, order, gather)?;
        self.set_optimised(pages, page, order, true);
        let kept = self.refresh(pages, page, gather);
        self.each_tail_slot(pages.platform(), page, order, |slot| {
            gather.old.push(pages, slot.load().frame());
            slot.store(Entry::leaf(kept, PageSize::Size4K, READ_ONLY));
        });
        gather.change(extent_of(page, order));
        pages.count(Stat::VmemmapEntry, frames_of(order) - 1);
        Ok(())
    }

    /// Moves the frame that is kept to a fresh one, so that the folio that it is part of can be freed as a
    /// whole; where that cannot be had, it stays. The frame that is kept.
    fn refresh<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        gather: &mut Gather,
    ) -> Frame {
        let slot = self.slot(pages.platform(), window_page(page, 0));
        let old = slot.load().frame();
        let Ok(mut fresh) = pages.alloc(self.gfp_at(pages, page), Order::FRAME) else {
            return old;
        };
        pages.frames().copy(FrameRange::folio(old, Order::FRAME), &mut fresh, TouchHint::Soon);
        let fresh = fresh.into_raw();
        slot.store(Entry::leaf(fresh, PageSize::Size4K, WRITABLE));
        gather.old.push(pages, old);
        self.frames.fetch_add(1, Ordering::Relaxed);
        pages.count(Stat::VmemmapAlloc, 1);
        pages.count(Stat::VmemmapEntry, 1);
        pages.count(Stat::VmemmapWrite, WINDOW_DESCRIPTORS);
        fresh
    }

    /// Gives each of a page's descriptors a place of its own again.
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
        let kept = self.slot(platform, window_page(page, 0)).load().frame();
        let head = Self::head_for(pages, page, order);
        self.each_tail_slot(platform, page, order, |slot| {
            let Some(frame) = frames.pop(pages) else { return };
            // SAFETY: invariant 1: the chain of frames that were just allocated owned this one.
            unsafe {
                pages.frames().copy_frames(FrameRange::folio(kept, Order::FRAME), frame, TouchHint::Soon)
            };
            // The copy of the head becomes what it is a tail of; all others are right as they are.
            if let Some(first) = words(platform, frame).as_chunks::<WORDS>().0.first() {
                write_tail(first, page, head);
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

    /// Calls `act` with the leaf of each frame of the window that a page's descriptors fill, apart from the
    /// first. They are split.
    fn each_tail_slot<P: TablePlatform>(
        &self,
        platform: &P,
        page: Frame,
        order: Order,
        mut act: impl FnMut(Slot<'_>),
    ) {
        let mut at = 1;
        while at < frames_of(order) {
            let Slot { table, index } = self.slot(platform, window_page(page, at));
            debug_assert_eq!(table.level(), Level::PTE);
            let here = (TABLE_ENTRIES - index).min((frames_of(order) - at) as usize);
            (index..index + here).for_each(|index| act(Slot { table, index }));
            at += here as u64;
        }
    }

    /// Takes single frames near a page, all or none.
    fn take_frames<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        count: u64,
    ) -> Result<FrameChain, AllocError> {
        let (gfp, mut frames) = (self.gfp_at(pages, page), FrameChain::default());
        while frames.len() < count {
            match pages.alloc(gfp, Order::FRAME) {
                Ok(folio) => frames.push(pages, folio.into_raw()),
                Err(error) => {
                    frames.free(pages);
                    return Err(error);
                }
            }
        }
        Ok(frames)
    }

    /// How frames of the window are asked for: on the page's node rather than on another.
    fn gfp_at<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame) -> Gfp {
        let node = pages.store().node_of_frame(page);
        // The running CPU's own node is the short way.
        if pages.requests().nodes_by_distance().next() == Some(node) {
            Gfp::KERNEL
        } else {
            Gfp::KERNEL.on_node(node)
        }
    }
}

/// The address of one of the frames of the window that a page's descriptors fill.
fn window_page(page: Frame, at: u64) -> VirtAddr {
    descriptor_addr(page.add(at * WINDOW_DESCRIPTORS))
}
