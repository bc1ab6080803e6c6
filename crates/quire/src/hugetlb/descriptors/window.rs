//! Descriptors by the machine's [`DescriptorPolicy`]: in the block, or in a window of descriptors.
#![forbid(unsafe_code)]

use crate::addr::Frame;
use crate::error::{AllocError, InitError};
use crate::hugetlb::descriptors::state::{Descriptors, Gathered};
use crate::hugetlb::failure::join;
use crate::hugetlb::resize::give_back;
use crate::hugetlb::{DescriptorPolicy, HugePools, HugeSize, PoolInfo};
use crate::limits::HUGE_BATCH;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::vmemmap::{PageChain, Window};

impl HugePools {
    /// Empty pools under a policy. All but `InBlock` map a window of descriptors for all memory, which takes
    /// 1/64 of it.
    ///
    /// # Errors
    /// [`InitError::TooSmall`]: the window does not fit. What was taken for it is lost then.
    pub fn with_policy<P: Platform>(
        pages: &PageAllocator<'_, P>,
        policy: DescriptorPolicy,
    ) -> Result<Self, InitError> {
        let window = Window::new(pages, policy).map_err(|_| InitError::TooSmall)?;
        Ok(Self { descriptors: Descriptors { window }, ..Self::new() })
    }

    /// The policy.
    pub fn policy(&self) -> DescriptorPolicy {
        self.descriptors.window.as_ref().map_or(DescriptorPolicy::InBlock, Window::policy)
    }

    /// The window of descriptors, if there is one.
    pub fn window(&self) -> Option<&Window> {
        self.descriptors.window.as_ref()
    }

    /// Whether descriptors of pages that join a pool are saved (`vm.hugetlb_optimize_vmemmap`).
    pub fn is_saving(&self) -> bool {
        self.descriptors.window.as_ref().is_none_or(Window::is_saving)
    }

    /// Chooses whether descriptors of pages that join a pool from now on are saved; those that are in one
    /// stay as they are. Whether the policy leaves the choice: `PerPage` and `Batched` do.
    pub fn set_saving(&self, saving: bool) -> bool {
        self.descriptors.window.as_ref().is_some_and(|window| window.set_saving(saving))
    }

    /// Whether the pages of a request are gathered before anything is done to them.
    pub(in crate::hugetlb) fn gathers(&self) -> bool {
        self.descriptors.window.as_ref().is_some_and(Window::wants_all)
    }

    pub(in crate::hugetlb) fn gather<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        gathered: &mut Gathered,
        frames: &[Frame],
    ) {
        frames.iter().for_each(|&frame| gathered.push(pages.memmap(), frame));
    }

    /// Pages are about to join a pool, a batch at most or 512, whose descriptors say so from now on.
    pub(in crate::hugetlb) fn describe<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: impl Iterator<Item = Frame>,
    ) {
        if let Some(window) = &self.descriptors.window {
            window.join(pages, &PageChain::of(pages.memmap(), frames), size.order());
        }
    }

    /// Adds pages that the caller has claimed, and gathered, to their pool, free.
    pub(in crate::hugetlb) fn join_gathered<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        mut chain: PageChain,
    ) {
        if let Some(window) = &self.descriptors.window {
            window.join(pages, &chain, size.order());
        }
        while !chain.is_empty() {
            let mut pool = self.lock(pages, size);
            for _ in 0..HUGE_BATCH {
                let Some(frame) = chain.pop(pages.memmap()) else { break };
                pool.claimed -= 1;
                join(&mut pool, pages, pages.store().node_of_frame(frame), frame);
            }
            drop(pool);
            pages.platform().reschedule_point();
        }
        self.shed_bad(pages, size);
    }

    /// Gives pages that have left their pool, a batch at most, back to the page allocator. Those for whose
    /// descriptors there is no memory go back to the pool as surplus pages; how many.
    pub(in crate::hugetlb) fn release<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: &[Frame],
    ) -> u64 {
        match &self.descriptors.window {
            None => {
                give_back(pages, size.order(), frames);
                0
            }
            Some(_) => self.release_all(pages, size, PageChain::of(pages.memmap(), frames.iter().copied())),
        }
    }

    /// The same for any number of pages under a policy with a window: restores as many as it can, frees
    /// these, which gives memory for the next ones, and goes on. When not even one can be restored first,
    /// each is tried by itself, the first that can be is freed, and those before it are surplus.
    pub(in crate::hugetlb) fn release_all<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        mut chain: PageChain,
    ) -> u64 {
        let Some(window) = &self.descriptors.window else { return 0 };
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

    /// A page is about to be handed out: walkers may see it in use.
    pub(in crate::hugetlb) fn thaw<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame) {
        self.window().inspect(|window| window.thaw(pages, frame));
    }

    /// A page came back: walkers see that it has no references.
    pub(in crate::hugetlb) fn freeze<P: Platform>(&self, pages: &PageAllocator<'_, P>, frame: Frame) {
        self.window().inspect(|window| window.freeze(pages, frame));
    }

    /// Whether the descriptors of a free page say that it is one.
    pub(in crate::hugetlb) fn is_described<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frame: Frame,
    ) -> bool {
        self.window().is_none_or(|window| window.describes(pages, frame, size.order()))
    }

    /// Free surplus pages, which an earlier request may have left over for want of memory for their
    /// descriptors.
    pub(in crate::hugetlb) fn leftover(&self, info: PoolInfo) -> u64 {
        if self.window().is_some() { info.surplus.min(info.free - info.reserved) } else { 0 }
    }

    fn keep_as_surplus<P: Platform>(&self, pages: &PageAllocator<'_, P>, size: HugeSize, frame: Frame) {
        let node = pages.store().node_of_frame(frame);
        let mut pool = self.lock(pages, size);
        join(&mut pool, pages, node, frame);
        pool.change_surplus(node, 1);
    }

    /// Brings back all descriptors of pages that are about to become pages of the other size, a batch of 512
    /// at most, and makes them say nothing.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: all pages are described still, though some may be optimised no longer.
    pub(in crate::hugetlb) fn undescribe<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        frames: impl Iterator<Item = Frame>,
    ) -> Result<(), AllocError> {
        let Some(window) = &self.descriptors.window else { return Ok(()) };
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
