//! Cancels pieces: a program gave up their addresses, or memory is short or went bad.

use crate::addr::{Frame, FrameRange, Order, VirtRange};
use crate::limits::{GIGANTIC_CLEARS, RECLAIM_FRAMES};
use crate::platform::Platform;
use crate::vm::gigantic::state::{Cleared, Folio, Pieces};
use crate::vm::handle::handle;
use crate::vm::space::shared::MmShared;

handle! { Cancellation of MmShared }

impl<P: Platform> Cancellation<'_, '_, P> {
    /// An address space gives addresses up, or exits: cancels the pieces that lie there.
    #[inline]
    pub(in crate::vm) fn cancel(self, owner: u64, range: VirtRange) {
        if self.gigantic_clears().any() {
            self.cancel_pieces(|folio| if folio.owner == owner { folio.inside(range) } else { Pieces::NONE });
        }
    }

    /// A frame went bad: cancels the pieces of its folio, so that the hold on the folio ends soon.
    pub(in crate::vm) fn cancel_around(self, frame: Frame) {
        if self.gigantic_clears().any() {
            let around = |folio: &Folio| FrameRange::folio(folio.frame, Order::GIGANTIC).contains(frame);
            self.cancel_pieces(|folio| if around(folio) { Pieces::ALL } else { Pieces::NONE });
        }
    }

    /// Memory is short: cancels all untouched pieces and frees what it can. Returns how many frames became
    /// free.
    pub(in crate::vm) fn cancel_all(self) -> u64 {
        if !self.gigantic_clears().any() {
            return 0;
        }
        let freed = self.cancel_pieces(|_| Pieces::ALL);
        if freed == 0 { self.pages().split_deferred(RECLAIM_FRAMES) } else { freed }
    }

    /// Cancels pieces of each folio, and ends the holds on folios that are done. Returns how many frames
    /// became free by that alone.
    fn cancel_pieces(self, chosen: impl Fn(&Folio) -> Pieces) -> u64 {
        let mut folios = self.gigantic_clears().lock(self.platform());
        let cleared: [Option<Cleared>; GIGANTIC_CLEARS] = core::array::from_fn(|slot| {
            let folio = folios[slot].as_mut().filter(|folio| !folio.is_hugetlb())?;
            folio.cancel(chosen(folio));
            self.gigantic_clears().take_cleared(&mut folios[slot])
        });
        drop(folios);
        cleared.iter().flatten().map(|cleared| self.detach(cleared)).sum()
    }

    /// Ends the hold on a folio that will never be one leaf. Its leaves own it now; without any it is freed.
    pub(super) fn detach(self, cleared: &Cleared) -> u64 {
        // SAFETY: invariant 1: `begin_clear` held the folio, whose slot is empty by now.
        let freed = unsafe { self.pages().counts().release(FrameRange::folio(cleared.frame, Order::FRAME)) };
        if freed == 0 {
            self.pages().counts().defer_if_partly_mapped(cleared.frame);
        }
        freed
    }
}
