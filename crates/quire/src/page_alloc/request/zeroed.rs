//! Free memory that is known to be zero, so that it is not cleared twice.
//!
//! Free memory is *known to be zero* in three cases: it was zero when the machine was taken over, a caller
//! cleared it and gave it back untouched ([`Requests::free_zeroed`]), or an idle CPU cleared it
//! ([`zero_ahead`](crate::page_alloc::Store::zero_ahead)). It is as free as all other memory: the same
//! searches find it, and it counts as available. Requests that do not ask for zeroes take it last.
//!
//! # Where the mark is
//!
//! | the folio is | the mark is |
//! |---|---|
//! | a whole block in its pool | a bit of the pool |
//! | free in a block in small pieces | a bit of the block's map in its area, and a byte in its record that says whether there are any |
//! | on a per-CPU list | a bit of the state of its first frame |
//! | just handed out to a caller that asks | the same bit, until [`Requests::alloc_maybe_zeroed`] has read it |
//!
//! In the store only free frames have marks, so a free need not look at them: code that takes frames takes
//! their marks off. A list's magazine is written into a folio that was freed without a mark. A block that
//! becomes whole again is known to be zero if all its frames are: one that contains tables is not.

use crate::addr::Order;
use crate::error::{AllocError, FreeError};
use crate::memmap::FrameState;
use crate::nodes::NodePolicy;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::pcp::level as pcp;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp};
use crate::platform::{Context, FramePlatform, TouchHint};
use crate::stats::Stat;
use crate::sync::Pinned;

impl<P: FramePlatform> Requests<'_, P> {
    /// [`Self::alloc`] for memory that must be zero before it is used: prefers memory that is known to be,
    /// and says whether it is.
    ///
    /// It repeats the common case of [`Self::alloc`] on purpose: that one does not read the state which it
    /// overwrites, and reading it costs a tenth (3.87 for 3.53 ns a pair).
    ///
    /// # Errors
    /// As [`Self::alloc`].
    ///
    /// # Panics
    /// If [`Zeroes::verify`](crate::page_alloc::Zeroes::verify) is set and a folio known to be zero is not.
    #[inline(always)]
    pub fn alloc_maybe_zeroed(&self, gfp: Gfp, order: Order) -> Result<(Folio, Contents), AllocError> {
        let (folio, contents) = self.alloc_uncounted(gfp, order)?;
        self.store().count_known(contents, order);
        Ok((folio, contents))
    }

    /// As [`Self::alloc_maybe_zeroed`], but the caller counts a folio that is known to be zero
    /// ([`Stat::PgzeroKnown`]), together with what else it counts.
    #[inline(always)]
    pub(crate) fn alloc_uncounted(&self, gfp: Gfp, order: Order) -> Result<(Folio, Contents), AllocError> {
        if self.platform().fail_allocation() {
            return Err(AllocError::OutOfMemory);
        }
        let pinned = Pinned::new(self.platform());
        if let Some(list) = pcp::list_of(order, gfp.mobility)
            && gfp.nodes == NodePolicy::Local
            && let Some((frame, state)) = self.lists.take_listed(pinned.cpu(), list, gfp.zone)
        {
            let zeroed = FrameState::of(state).is_zeroed();
            self.frames().mark_in_use(frame, state, order, false);
            let contents = if zeroed { self.store().verified(frame, order) } else { Contents::Unknown };
            return Ok((self.frames().folio(frame, order), contents));
        }
        drop(pinned);
        self.alloc_unlisted_zeroed(gfp, order)
    }

    #[cold]
    #[inline(never)]
    fn alloc_unlisted_zeroed(&self, gfp: Gfp, order: Order) -> Result<(Folio, Contents), AllocError> {
        let frame = self.alloc_slow(gfp.for_zeroes(), order)?;
        Ok((self.frames().folio(frame, order), self.store().take_mark(frame, order)))
    }

    /// Frees a folio all of which is zero.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_zeroed(&self, folio: Folio) -> Result<(), FreeError> {
        if !self.store().zeroes.remember || self.platform().context() != Context::Task {
            return self.free(folio);
        }
        let (frame, order) = self.frames().take_back(folio)?;
        self.frames().in_store(|| self.store().store_free(frame, order, Contents::Zeroed))?;
        self.frames().count(Stat::Pgfree, order.frames());
        Ok(())
    }

    /// Allocates a frame that is zero, to be used at once.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    #[inline]
    pub fn alloc_zero_page(&self, gfp: Gfp) -> Result<Folio, AllocError> {
        let (mut folio, contents) = self.alloc_maybe_zeroed(gfp, Order::FRAME)?;
        if contents == Contents::Unknown {
            self.frames().clear(&mut folio, TouchHint::Soon);
        }
        Ok(folio)
    }
}
