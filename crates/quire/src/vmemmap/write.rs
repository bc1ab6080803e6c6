//! Writes the descriptors of one huge page through the direct map; only its owner does.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::Window;
use super::descriptor::{COMPOUND, COUNT, FLAGS, Head, WORDS, descriptor_addr, mask_of, tail_of};
use crate::addr::{Frame, Order};
use crate::limits::{TABLE_ENTRIES, WINDOW_DESCRIPTORS};
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::words;

impl Window {
    /// The words of the window's frame that has a frame's descriptor.
    pub(super) fn words_of<'a, P: TablePlatform>(
        &self,
        platform: &'a P,
        frame: Frame,
    ) -> &'a [AtomicU64; TABLE_ENTRIES] {
        let aligned = Frame(frame.0 / WINDOW_DESCRIPTORS * WINDOW_DESCRIPTORS);
        words(platform, self.frame_behind(platform, descriptor_addr(aligned)))
    }

    /// The head of a page that is not optimised.
    pub(super) fn head_for<P: TablePlatform>(
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
    ) -> Head {
        let (node, zone) = (pages.store().node_of_frame(page), pages.frames().zone_of_frame(page));
        Head { order, node, zone, optimised: false }
    }

    /// Writes the descriptors of a huge page without references in these of its frames of the window: the
    /// tails first, and the head last, if it is among them.
    pub(super) fn compose<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        frames: Range<u64>,
    ) {
        let (head, named) = (Self::head_for(pages, page, order), self.named_by_tails(page, order));
        for at in frames.clone() {
            let words = self.words_of(pages.platform(), page.add(at * WINDOW_DESCRIPTORS));
            let tails = words.as_chunks::<WORDS>().0.iter().skip(usize::from(at == 0));
            tails.for_each(|tail| write_tail(tail, named, head));
        }
        if frames.start == 0 {
            let words = self.words_of(pages.platform(), page);
            words[COMPOUND].store(0, Ordering::Relaxed);
            words[COUNT].store(0, Ordering::Relaxed);
            words[FLAGS].store(head.word(), Ordering::Release);
        }
        let written = (frames.end - frames.start) * WINDOW_DESCRIPTORS;
        pages.count(Stat::VmemmapWrite, written);
    }

    /// The word by which a page's tails lead to its head.
    pub(super) fn named_by_tails(&self, page: Frame, order: Order) -> u64 {
        if self.shares_tails() { mask_of(order) } else { tail_of(page) }
    }

    /// Clears the descriptors of a page that is not optimised.
    pub(super) fn dissolve<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame, order: Order) {
        for at in 0..frames_of(order) {
            let words = self.words_of(pages.platform(), page.add(at * WINDOW_DESCRIPTORS));
            for descriptor in words.as_chunks::<WORDS>().0 {
                [FLAGS, COMPOUND, COUNT]
                    .iter()
                    .for_each(|&word| descriptor[word].store(0, Ordering::Relaxed));
            }
        }
        pages.count(Stat::VmemmapWrite, order.frames());
    }

    /// Whether one frame stands for all descriptors of a page, which the caller owns or no task changes.
    pub fn is_optimised<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame) -> bool {
        let word = self.words_of(pages.platform(), page)[FLAGS].load(Ordering::Relaxed);
        Head::of(word).is_some_and(|head| head.optimised)
    }

    /// Writes into the head whether the page is optimised.
    pub(super) fn set_optimised<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
        optimised: bool,
    ) {
        let head = Head { optimised, ..Self::head_for(pages, page, order) };
        self.words_of(pages.platform(), page)[FLAGS].store(head.word(), Ordering::Relaxed);
    }

    /// Gives a page that leaves its pool for use one reference; walkers may add theirs from now on.
    pub(crate) fn thaw<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame) {
        self.words_of(pages.platform(), page)[COUNT].store(1, Ordering::Release);
    }

    /// Takes the one reference of a page that comes back to its pool, once walkers have taken theirs back,
    /// which they do soon. They add none afterwards.
    pub(crate) fn freeze<P: TablePlatform>(&self, pages: &PageAllocator<'_, P>, page: Frame) {
        let count = &self.words_of(pages.platform(), page)[COUNT];
        while count.compare_exchange_weak(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            debug_assert_ne!(count.load(Ordering::Relaxed), 0, "a page that is given back is in use");
            pages.platform().relax();
        }
    }
}

/// The number of the window's frames that a page's descriptors fill.
pub(super) const fn frames_of(order: Order) -> u64 {
    order.frames() / WINDOW_DESCRIPTORS
}

pub(super) fn write_tail(descriptor: &[AtomicU64; WORDS], named: u64, head: Head) {
    descriptor[FLAGS].store(head.tail_word(), Ordering::Relaxed);
    descriptor[COUNT].store(0, Ordering::Relaxed);
    descriptor[COMPOUND].store(named, Ordering::Release);
}
