//! The frames of tails that all optimised pages of one order and zone share, under `mask-tail`.
//!
//! Each tail there holds the order in place of its head's number, which a walker finds by aligning the
//! frame's. So all tails of an order in a zone are the same, and one frame of 64 of them stands for the tails
//! of any number of pages: each page keeps its first frame of descriptors, with its head and 63 tails, and
//! maps the shared one, read-only, behind it. No copy of a head is anywhere.
//!
//! A walker may be about to store to a head, and never stores to anything else. A page of 2 MiB has one head,
//! and its frame stays writable, so such pages change without a grace period. A page of 1 GiB hides the heads
//! of the 2 MiB pages that it was before, so it waits for one before it is optimised; it never waits to be
//! restored. (The proposal drops it for both sizes.)
//!
//! Source: Shutsemau, "mm: Eliminate fake head pages from vmemmap optimization", version 7, February 2026;
//! with one frame for each node and order in version 6.

use core::sync::atomic::{AtomicU64, Ordering};

use super::descriptor::{WORDS, mask_of};
use super::write::write_tail;
use super::{DescriptorPolicy, Window};
use crate::addr::{Frame, Order};
use crate::error::AllocError;
use crate::limits::WINDOW_DESCRIPTORS;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::stats::Stat;
use crate::tlb::words::words;

/// A block's record has room for the number of so many zones.
const ZONES: usize = 64;

/// The shared frames: for each zone and each size of huge pages the frame's number plus one, or zero.
pub(super) struct SharedTails([[AtomicU64; 2]; ZONES]);

impl SharedTails {
    pub(super) const fn new() -> Self {
        Self([const { [const { AtomicU64::new(0) }; 2] }; ZONES])
    }
}

impl Window {
    /// Whether all tails of an order in a zone share one frame.
    pub(super) fn shares_tails(&self) -> bool {
        self.policy == DescriptorPolicy::MaskTail
    }

    /// Whether a grace period must pass before pages of this order are optimised.
    pub(super) fn waits_to_optimise(&self, order: Order) -> bool {
        !self.shares_tails() || order > Order::BLOCK
    }

    /// Whether a grace period must pass before pages are restored.
    pub(super) fn waits_to_restore(&self) -> bool {
        !self.shares_tails()
    }

    /// The frame of tails for pages of this order in the zone of `page`: allocated at the first request, and
    /// kept.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(super) fn shared_tail<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
    ) -> Result<Frame, AllocError> {
        let head = Self::head_for(pages, page, order);
        let known = &self.tails.0[usize::from(head.zone) % ZONES][usize::from(order > Order::BLOCK)];
        if let Some(number) = known.load(Ordering::Acquire).checked_sub(1) {
            return Ok(Frame(number));
        }
        let folio = pages.alloc(self.gfp_at(pages, page), Order::FRAME)?;
        let frame = folio.frame();
        let tails = words(pages.platform(), frame).as_chunks::<WORDS>().0;
        for tail in tails {
            tail.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            write_tail(tail, mask_of(order), head);
        }
        if let Err(other) = known.compare_exchange(0, frame.0 + 1, Ordering::AcqRel, Ordering::Acquire) {
            let freed = pages.free(folio);
            debug_assert_eq!(freed, Ok(()), "another CPU was first, and no entry names this one");
            return Ok(Frame(other - 1));
        }
        self.frames.fetch_add(1, Ordering::Relaxed);
        pages.count(Stat::VmemmapAlloc, 1);
        pages.count(Stat::VmemmapWrite, WINDOW_DESCRIPTORS);
        // The window's from now on.
        Ok(folio.into_raw())
    }
}
