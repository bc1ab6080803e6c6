//! Optimises and restores all pages of one request: the passes, and the flushes between them.
//!
//! # Joining
//!
//! Each page's head and first tails are written. Then, with `batched`:
//! 1. Split all leaves that map descriptors of the request's pages, up to the first for which there is no
//!    memory.
//! 2. Flush, and wait for a grace period.
//! 3. Optimise all pages. A page whose leaf was not split splits it now, since frames may have been freed
//!    meanwhile. Where a page cannot be optimised and the gather has frames, flush, free them, and try once
//!    more.
//! 4. Flush, and free what was gathered.
//!
//! A page that cannot be optimised at all gets the rest of its tails, and is as good as any.
//!
//! # Leaving
//!
//! Wait for a grace period; restore pages in order, up to the first for which there is no memory; flush.
//!
//! `per-page` does all of it for each page by itself. `mask-tail` waits for no grace period where none is
//! needed.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::remap::Gather;
use super::write::frames_of;
use super::{DescriptorPolicy, PageChain, Window};
use crate::addr::{Frame, Order};
use crate::error::AllocError;
use crate::limits::WINDOW_STRIDE;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::stats::Stat;

impl Window {
    /// Whether callers should give one request's pages to [`Self::add_pages`] and [`Self::restore_all`] together.
    pub fn wants_all(&self) -> bool {
        matches!(self.policy, DescriptorPolicy::Batched | DescriptorPolicy::MaskTail)
    }

    /// Describes the caller's pages, which are to join a pool, and optimises them unless saving is off.
    ///
    /// Precondition: the task is in no section and holds no lock but that of an address space.
    pub(crate) fn add_pages<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &PageChain,
        order: Order,
    ) {
        let saving = self.is_saving();
        let described = if saving { 1 } else { frames_of(order) };
        if let (true, true, Some(page)) = (saving, self.shares_tails(), chain.first()) {
            // Both now, so that a change of size later needs no further frame. A failure shows where one is
            // used.
            [Order::BLOCK, Order::GIGANTIC]
                .iter()
                .for_each(|&order| _ = self.shared_tail(pages, page, order));
        }
        self.each(pages, chain, |page| {
            self.compose(pages, page, order, 0..described);
            if saving && !self.wants_all() {
                self.optimise_one(pages, page, order);
            }
            true
        });
        if saving && self.wants_all() {
            self.optimise_batch(pages, chain, order);
        }
    }

    /// Restores pages that are to leave a pool, from the first on, and moves them from `chain` to `whole`.
    /// Only the caller has them, and they stay described until [`Self::forget`].
    ///
    /// Precondition: as for [`Self::add_pages`].
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: the first page of `chain` could not be restored.
    pub(crate) fn restore_all<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &mut PageChain,
        whole: &mut PageChain,
        order: Order,
    ) -> Result<(), AllocError> {
        let (mut gather, mut outcome, mut waited) = (Gather::default(), Ok(()), false);
        while let Some(page) = chain.first() {
            if self.is_optimised(pages, page) {
                if self.waits_to_restore() && !core::mem::replace(&mut waited, self.wants_all()) {
                    self.grace(pages);
                }
                outcome = self.restore(pages, page, order, &mut gather);
                if outcome.is_err() {
                    break;
                }
                if !self.wants_all() {
                    self.settle(pages, &mut gather);
                }
            }
            chain.pop(pages.memmap());
            whole.push(pages.memmap(), page);
            if whole.len().is_multiple_of(WINDOW_STRIDE) {
                pages.platform().reschedule_point();
            }
        }
        self.settle(pages, &mut gather);
        outcome
    }

    /// Clears the descriptors of restored pages, which are about to belong to no pool.
    pub(crate) fn forget<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &PageChain,
        order: Order,
    ) {
        self.each(pages, chain, |page| {
            self.dissolve(pages, page, order);
            true
        });
    }

    /// Makes both passes over a request's pages.
    fn optimise_batch<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &PageChain,
        order: Order,
    ) {
        let mut gather = Gather::default();
        // Stops at the first failure; later pages split on demand.
        self.each(pages, chain, |page| self.split_for(pages, page, order, &mut gather).is_ok());
        self.settle(pages, &mut gather);
        if !chain.is_empty() && self.waits_to_optimise(order) {
            self.grace(pages);
        }
        self.each(pages, chain, |page| {
            let mut done = self.optimise(pages, page, order, &mut gather);
            if done.is_err() && gather.old.len() > 0 {
                self.settle(pages, &mut gather);
                done = self.optimise(pages, page, order, &mut gather);
            }
            self.complete(pages, page, order, done);
            true
        });
        self.settle(pages, &mut gather);
    }

    /// As [`Self::optimise_batch`] for one page.
    fn optimise_one<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame, order: Order) {
        let mut gather = Gather::default();
        let split = self.split_for(pages, page, order, &mut gather);
        self.settle(pages, &mut gather);
        let done = split.and_then(|()| {
            self.grace(pages);
            self.optimise(pages, page, order, &mut gather)
        });
        self.complete(pages, page, order, done);
        self.settle(pages, &mut gather);
    }

    fn complete<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        done: Result<(), AllocError>,
    ) {
        if done.is_err() {
            self.compose(pages, page, order, 1..frames_of(order));
        }
    }

    /// Waits for walkers that may still store to pages which are frozen by now.
    fn grace<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>) {
        self.walkers.wait(pages.platform());
        pages.count(Stat::VmemmapGrace, 1);
    }

    /// Flushes what was changed, if anything, and then frees the gathered frames.
    fn settle<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, gather: &mut Gather) {
        if let Some(range) = gather.take_changed() {
            pages.platform().flush_kernel(range);
            pages.count(Stat::VmemmapFlush, 1);
        }
        if gather.old.len() > 0 {
            self.peak.fetch_max(gather.old.len(), Ordering::Relaxed);
            let freed = gather.old.free(pages);
            self.frames.fetch_sub(freed, Ordering::Relaxed);
            pages.count(Stat::VmemmapFree, freed);
        }
    }

    /// Calls `act` for each page until it returns false, with reschedule points.
    fn each<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &PageChain,
        mut act: impl FnMut(Frame) -> bool,
    ) {
        let mut done = 0;
        for page in chain.iter(pages.memmap()) {
            if !act(page) {
                return;
            }
            done += 1;
            if done % WINDOW_STRIDE == 0 {
                pages.platform().reschedule_point();
            }
        }
    }
}
