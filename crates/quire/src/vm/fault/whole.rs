//! Completes a page of a file that is cleared piece by piece.
#![forbid(unsafe_code)]

use crate::addr::{Frame, Order, VirtAddr, VirtRange};
use crate::filemap::HugePage;
use crate::platform::Platform;
use crate::vm::fault::HugePlace;
use crate::vm::fault::faults::Faults;
use crate::vm::gigantic::file::FileClears;
use crate::vm::gigantic::pool::PoolClears;

impl<P: Platform> Faults<'_, '_, P> {
    /// Completes a page of a file, and maps it by one leaf around an address where leaves of pieces, or their
    /// empty table, are in the way. The caller holds no lock.
    pub(super) fn make_whole(self, addr: VirtAddr, page: Frame) {
        let clears = FileClears::of(self.memory);
        PoolClears::of(self.memory).complete_around(page);
        let space = self.lock();
        let Some(vma) = space.tree.find(addr).filter(|vma| vma.attributes.huge_size().is_some()) else {
            return;
        };
        let Some(place) = self.place_of(vma, addr) else { return };
        if self.has_whole(&place, page) && !clears.is_in_pieces(page) {
            clears.make_one_leaf(
                self.body(),
                vma,
                VirtRange::from_len(place.start, place.size.bytes()),
                page,
            );
        }
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
