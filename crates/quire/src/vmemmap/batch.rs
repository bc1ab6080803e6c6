//! The pages of one request: which passes there are, and which flushes between them.
//!
//! # Joining
//!
//! A page's head and first tails are written. Then (`batched`) all leaves that the request's pages stand in
//! are split, up to the first for which there is no memory; one flush; a grace period; all pages are
//! optimised, those whose leaf was not split splitting it now, since frames have come back meanwhile; one
//! flush; and what was gathered is freed. Where a page cannot be optimised and something has been gathered,
//! that is flushed and freed, and the page is tried once more. A page that cannot be optimised at all gets
//! the rest of its tails, and is as good as any.
//!
//! # Leaving
//!
//! A grace period; pages are restored in order, up to the first for which there is no memory; one flush.
//!
//! `per-page` does all of it for each page by itself.
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
    /// Whether one request's pages are best given to [`Self::join`] and [`Self::restore_all`] together.
    pub fn wants_all(&self) -> bool {
        self.policy == DescriptorPolicy::Batched
    }

    /// Describes pages that are to join a pool, and optimises them if that is wanted. Only the caller has
    /// them.
    ///
    /// Precondition: a task that is in no section and holds no lock but that of an address space.
    pub fn join<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, chain: &PageChain, order: Order) {
        if !self.is_saving() {
            self.each(pages, chain, |page| {
                self.compose(pages, page, order, 0..frames_of(order));
                true
            });
        } else if self.wants_all() {
            self.each(pages, chain, |page| {
                self.compose(pages, page, order, 0..1);
                true
            });
            self.optimise_batch(pages, chain, order);
        } else {
            self.each(pages, chain, |page| {
                self.compose(pages, page, order, 0..1);
                self.optimise_one(pages, page, order);
                true
            });
        }
    }

    /// Brings back the descriptors of pages that are to leave a pool, from the first on, and moves those that
    /// have all of theirs from `chain` to `whole`. Only the caller has them, and they stay described until
    /// [`Self::forget`].
    ///
    /// Precondition: as for [`Self::join`].
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: the first page of `chain` could not be restored.
    pub fn restore_all<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &mut PageChain,
        whole: &mut PageChain,
        order: Order,
    ) -> Result<(), AllocError> {
        let (mut gather, mut outcome, mut waited) = (Gather::default(), Ok(()), false);
        while let Some(page) = chain.first() {
            if self.is_optimised(pages, page) {
                if !core::mem::replace(&mut waited, self.wants_all()) {
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

    /// Makes the descriptors of pages that were restored say nothing: they are about to belong to no pool.
    pub fn forget<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, chain: &PageChain, order: Order) {
        self.each(pages, chain, |page| {
            self.dissolve(pages, page, order);
            true
        });
    }

    /// Both passes over a request's pages.
    fn optimise_batch<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        chain: &PageChain,
        order: Order,
    ) {
        let mut gather = Gather::default();
        // Until the first failure; later pages split on demand.
        self.each(pages, chain, |page| self.split_for(pages, page, order, &mut gather).is_ok());
        self.settle(pages, &mut gather);
        if !chain.is_empty() {
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

    /// The same for one page by itself.
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

    /// Gives a page that was not optimised the rest of its tails.
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

    /// Waits for the walkers that may be about to store to pages that are frozen by now.
    fn grace<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>) {
        self.walkers.wait(pages.platform());
        pages.count(Stat::VmemmapGrace, 1);
    }

    /// Flushes what was changed, if anything was, and frees what waited for it.
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

    /// Does something to each page until it says no, with reschedule points.
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
