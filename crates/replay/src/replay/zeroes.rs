//! Linux's huge page of zeroes, which the library has not. Where folios of 2 MiB are allowed, a load of untouched anonymous
//! memory maps this page for the whole 2 MiB, so that further loads take no fault; the first store there takes a folio of 2 MiB
//! (`do_huge_pmd_anonymous_page`, `do_huge_zero_wp_pmd`, Linux 6.18 with `use_zero_page` 1). Where the library would map
//! pages of zeroes of 4 KiB, a replay maps nothing, and notes the pages.

use quire::addr::{Order, VirtAddr, VirtRange};
use quire::vm::policy::HugeAdvice;
use quire::vm::{FaultKind, FaultOutcome};

use super::policy::FolioSet;
use super::processes::{Key, Space};
use super::replayer::Replayer;
use super::verb::PAGE;
use crate::trace::Access;

const BLOCK: u64 = Order::BLOCK.frames();

impl Replayer<'_> {
    /// What becomes of an access that the huge page of zeroes serves; `None` for all others.
    pub(super) fn huge_zero(&mut self, key: Key, addr: u64, access: Access) -> Option<FaultOutcome> {
        let set = self.set;
        if set.largest() != Order::BLOCK || access != Access::Read {
            return None;
        }
        let space = self.processes.get_mut(key);
        if space.zeroes.contains(addr / PAGE) {
            return Some(FaultOutcome { order: Order::BLOCK, kind: FaultKind::Spurious });
        }
        let block = VirtRange::from_len(VirtAddr(addr / PAGE / BLOCK * BLOCK * PAGE), BLOCK * PAGE);
        let (first, end) = (block.start.page(), block.end.page());
        if space.touched.pages_in(first, end).next().is_some() || !takes_block(space, set, block) {
            return None;
        }
        space.zeroes.insert_range(first, end);
        Some(FaultOutcome { order: Order::FRAME, kind: FaultKind::AnonZero })
    }
}

impl Space<'_> {
    /// An access brought in a page, or the folio around it, in the place of zeroes.
    pub(super) fn forget_zeroes(&mut self, page: u64, order: Order) {
        let first = page >> order.get() << order.get();
        self.zeroes.remove_range(first, first + order.frames());
    }
}

/// Whether a store to the block, which is untouched, would ask for a folio of all of it.
fn takes_block(space: &Space<'_>, set: FolioSet, block: VirtRange) -> bool {
    let mut takes = false;
    space.mm.vmas_in(block, |vma| {
        let asks = vma.advice == HugeAdvice::Huge;
        let is_anonymous = vma.file.is_none() && vma.advice != HugeAdvice::NoHuge;
        takes |= is_anonymous && vma.range.covers(block) && set.gives(Order::BLOCK, asks);
    });
    takes
}
