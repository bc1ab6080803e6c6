//! Completes a page of a file that is cleared piece by piece.
#![forbid(unsafe_code)]

use crate::addr::{Frame, Order, VirtAddr, VirtRange};
use crate::error::Cancelled;
use crate::filemap::HugePage;
use crate::platform::Platform;
use crate::vm::fault::HugePlace;
use crate::vm::fault::faults::Faults;
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolClears;

impl<P: Platform> Faults<'_, '_, P> {
    /// Completes a page of a file, and maps it by one leaf around an address where leaves of pieces, or their
    /// empty table, are in the way. The caller holds no lock.
    ///
    /// # Errors
    /// [`Cancelled`] if the task is to be killed before the page is complete.
    pub(super) fn make_whole(self, addr: VirtAddr, page: Frame) -> Result<(), Cancelled> {
        let (clears, platform) = (FileClears::of(self.memory), self.memory.platform());
        PoolClears::of(self.memory).complete_around_until(page, || platform.is_dying())?;
        let space = self.lock();
        let Some(vma) = space.tree.find(addr) else { return Ok(()) };
        let Some(place) = self.place_of(vma, addr) else { return Ok(()) };
        if self.has_whole(&place, page) && !clears.is_in_pieces(page) {
            clears.make_one_leaf(
                self.body(),
                vma,
                VirtRange::from_len(place.start, place.size.bytes()),
                page,
            );
        }
        Ok(())
    }

    /// Whether this is the page at a claimed place of a file, and none of its memory went bad: a visit of all
    /// its leaves may have come before this lock.
    fn has_whole(self, place: &HugePlace<'_>, page: Frame) -> bool {
        let (node, order) = (place.file.node(), place.size.order());
        let there = self.memory.files().huge_page(self.memory.platform(), node, place.index);
        let is_it = matches!(there, Some(HugePage::Present { frame, .. }) if frame == page);
        let good = !self.memory.pages().frames().has_bad(page);
        is_it && good && order == Order::GIGANTIC && !node.is_cut_off(place.index * order.frames())
    }
}
