//! Descriptors by the machine's [`DescriptorPolicy`]: in the block, or in a window of descriptors.
#![forbid(unsafe_code)]

use crate::addr::Frame;
use crate::error::{AllocError, InitError};
use crate::hugetlb::descriptors::state::Gathered;
use crate::hugetlb::failure::add_page;
use crate::hugetlb::resize::give_back;
use crate::hugetlb::{DescriptorPolicy, HugePools, HugeSize, PoolInfo};
use crate::limits::HUGE_BATCH;
use crate::page_alloc::{PageAllocator, TableFrames};
use crate::platform::Platform;
use crate::vmemmap::{PageChain, Window};

impl<'p> HugePools<'p> {
    /// Empty pools under a policy. All but `InBlock` map a window of descriptors, of 1/64 of all memory, with
    /// that which may be added later.
    ///
    /// # Errors
    /// [`InitError::TooSmall`]: the window or a table does not fit. The memory taken for it is lost then.
    pub fn with_policy<P: Platform>(
        pages: &PageAllocator<'p, P>,
        policy: DescriptorPolicy,
    ) -> Result<Self, InitError> {
        let mut made = Self::new(pages)?;
        if let Some(window) = Window::new(pages, policy).map_err(|_| InitError::TooSmall)? {
            let mut window = Some(window);
            let table = TableFrames::new(pages).table(1, |_, _| window.take().ok_or(InitError::TooSmall))?;
            made.descriptors.window = table;
        }
        Ok(made)
    }
}

impl HugePools<'_> {
    /// The policy.
    pub fn policy(&self) -> DescriptorPolicy {
        self.window().map_or(DescriptorPolicy::InBlock, Window::policy)
    }

    /// The window of descriptors, if there is one.
    pub fn window(&self) -> Option<&Window> {
        self.descriptors.window.first()
    }

    /// Whether descriptors of pages that join a pool are saved (`vm.hugetlb_optimize_vmemmap`).
    pub fn is_saving(&self) -> bool {
        self.window().is_none_or(Window::is_saving)
    }

    /// Chooses whether descriptors of pages that join a pool from now on are saved. Returns whether the
    /// policy leaves the choice: `PerPage` and `Batched` do.
    pub fn set_saving(&self, saving: bool) -> bool {
        self.window().is_some_and(|window| window.set_saving(saving))
    }

    /// Whether a resize gathers all its pages before it adds or frees any.
    pub(in crate::hugetlb) fn gathers(&self) -> bool {
        self.window().is_some_and(Window::wants_all)
    }

    pub(in crate::hugetlb) fn gather<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        gathered: &mut Gathered,
        frames: &[Frame],
    ) {
        frames.iter().for_each(|&frame| gathered.push(pages.memmap(), frame));
    }

    /// Sets the descriptors of pages that are about to join a pool: a batch at most, or 512.
    pub(in crate::hugetlb) fn describe<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: impl Iterator<Item = Frame>,
    ) {
        if let Some(window) = self.window() {
            window.add_pages(pages, &PageChain::of(pages.memmap(), frames), size.order());
        }
    }

    /// Adds pages that the caller has claimed and gathered to their pool, free.
    pub(in crate::hugetlb) fn add_gathered<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        mut chain: PageChain,
    ) {
        if let Some(window) = self.window() {
            window.add_pages(pages, &chain, size.order());
        }
        while !chain.is_empty() {
            let mut pool = self.lock(pages, size);
            for _ in 0..HUGE_BATCH {
                let Some(frame) = chain.pop(pages.memmap()) else { break };
                pool.claimed -= 1;
                add_page(&mut pool, pages, pages.store().node_of_frame(frame), frame);
            }
            drop(pool);
            pages.platform().reschedule_point();
        }
        self.shed_bad(pages, size);
    }

    /// Frees pages that have left their pool, a batch at most. Pages for whose descriptors there is no memory
    /// go back to the pool as surplus; returns how many.
    pub(in crate::hugetlb) fn release<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: &[Frame],
    ) -> u64 {
        if self.window().is_some() {
            return self.release_all(pages, size, PageChain::of(pages.memmap(), frames.iter().copied()));
        }
        give_back(pages, size.order(), frames);
        0
    }

    /// As [`Self::release`] for any number of pages, under a policy with a window. Restores as many as it
    /// can, frees these, which gives memory for the next ones, and goes on. If it cannot restore even the
    /// first, that one becomes surplus and it tries the next.
    pub(in crate::hugetlb) fn release_all<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        mut chain: PageChain,
    ) -> u64 {
        let Some(window) = self.window() else { return 0 };
        let mut kept = 0;
        while !chain.is_empty() {
            let mut whole = PageChain::new();
            let outcome = window.restore_all(pages, &mut chain, &mut whole, size.order());
            if outcome.is_err()
                && whole.is_empty()
                && let Some(frame) = chain.pop(pages.memmap())
            {
                self.keep_as_surplus(pages, size, frame);
                kept += 1;
            }
            window.forget(pages, &whole, size.order());
            while let Some(frame) = whole.pop(pages.memmap()) {
                give_back(pages, size.order(), &[frame]);
            }
        }
        kept
    }

    /// For a page that is about to be handed out: walkers may see it in use.
    pub(in crate::hugetlb) fn thaw<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame) {
        self.window().inspect(|window| window.thaw(pages, frame));
    }

    /// For a page that came back: walkers see no references.
    pub(in crate::hugetlb) fn freeze<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame) {
        self.window().inspect(|window| window.freeze(pages, frame));
    }

    /// Whether the descriptors of a free page are right.
    pub(in crate::hugetlb) fn is_described<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
    ) -> bool {
        self.window().is_none_or(|window| window.describes(pages, frame, size.order()))
    }

    /// Free surplus pages: an earlier resize may have had no memory for their descriptors.
    pub(in crate::hugetlb) fn leftover(&self, info: PoolInfo) -> u64 {
        if self.window().is_some() { info.surplus.min(info.free - info.reserved) } else { 0 }
    }

    fn keep_as_surplus<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, frame: Frame) {
        let node = pages.store().node_of_frame(frame);
        let mut pool = self.lock(pages, size);
        add_page(&mut pool, pages, node, frame);
        pool.change_surplus(node, 1);
    }

    /// Restores and resets the descriptors of up to 512 pages that are to become pages of the other size.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: all pages are still described, though some may be optimised no longer.
    pub(in crate::hugetlb) fn undescribe<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: impl Iterator<Item = Frame>,
    ) -> Result<(), AllocError> {
        let Some(window) = self.window() else { return Ok(()) };
        let (mut chain, mut whole) = (PageChain::of(pages.memmap(), frames), PageChain::new());
        let restored = window.restore_all(pages, &mut chain, &mut whole, size.order());
        if restored.is_ok() {
            window.forget(pages, &whole, size.order());
        }
        while let Some(frame) = whole.pop(pages.memmap()).or_else(|| chain.pop(pages.memmap())) {
            debug_assert!(pages.frames().is_huge(frame, size.order()), "the pages are whole folios still");
        }
        restored
    }
}
