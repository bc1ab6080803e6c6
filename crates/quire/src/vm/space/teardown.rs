//! Steps that several verbs take: cut leaves and tables at the ends of a range, unshare tables, unmap.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::{MapError, MmError};
use crate::pgtable::{RangeEnds, Zap};
use crate::platform::Platform;
use crate::tlb::MmuGather;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::hugetlb::ends::cuts;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::{Counted, counted};
use crate::vm::space::state::Space;

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Splits large leaves that reach over an end of the range, and unshares tables that do, so that
    /// unmapping the range needs no memory. Drops page cache before it reports that memory is out.
    #[inline]
    pub(in crate::vm) fn cut(&self, range: VirtRange) -> Result<RangeEnds<'m>, MmError> {
        let uncut = self.tables().within_table(range);
        uncut.map_or_else(|| self.retried(|| self.tables().cut(range)), Ok)
    }

    /// Splits leaves until none reaches across an address.
    pub(in crate::vm) fn cut_at(&self, at: VirtAddr) -> Result<(), MmError> {
        self.retried(|| self.tables().split_at(at))
    }

    /// As [`Self::cut`], except that huge pages, which are mapped whole, stay whole.
    pub(in crate::vm) fn cut_small(&self, space: &Space, range: VirtRange) -> Result<(), MmError> {
        if !space.huge {
            return self.cut(range).map(drop);
        }
        for at in [range.start, range.end].into_iter().filter(|&at| cuts(space, at).is_none()) {
            self.cut_at(at)?;
        }
        self.retried(|| self.tables().unshare_ends(range))
    }

    /// Unshares every table that maps something in the range.
    pub(in crate::vm) fn unshare(&self, range: VirtRange) -> Result<(), MmError> {
        self.retried(|| self.tables().unshare(range))
    }

    /// Attempts something that may need memory, and once more after dropping page cache.
    #[inline(never)]
    fn retried<T>(&self, attempt: impl Fn() -> Result<T, MapError>) -> Result<T, MmError> {
        let mut again = false;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(MapError::OutOfMemory) if !again && self.memory.reclaim() > 0 => again = true,
                Err(_) => return Err(MmError::NoMemory),
            }
        }
    }

    /// Unmaps what `vmas`, in ascending order, map inside `within`. Nothing else is mapped in `limits`, which
    /// covers `within`, so tables there are freed whole. The ends of `within` were [`Self::cut`] under the same
    /// hold of the lock, for writing.
    pub(in crate::vm) fn zap<'v>(
        &self,
        vmas: impl Iterator<Item = &'v Vma>,
        within: VirtRange,
        limits: VirtRange,
        cut: RangeEnds<'m>,
    ) {
        Cancellation::of(self.memory).cancel(self.mapper.number(), within);
        // One gather for neighbours of the same kind. What is before them has no leaves any more, so the last one
        // that reaches into a table detaches it.
        let up_to = |sum, end| Zap::tables(sum, VirtRange::new(limits.start, end));
        let mut open: Option<(VirtRange, Counted)> = None;
        for vma in vmas {
            let (range, counted) = (vma.range.intersect(within), counted(vma));
            match &mut open {
                Some((sum, alike)) if *alike == counted => sum.end = range.end,
                _ => {
                    if let Some((sum, counted)) = open {
                        self.zap_alike(up_to(sum, sum.end), within, cut, counted);
                    }
                    open = Some((range, counted));
                }
            }
        }
        if let Some((sum, counted)) = open {
            self.zap_alike(up_to(sum, limits.end), within, cut, counted);
        }
    }

    fn zap_alike(&self, zap: Zap, within: VirtRange, cut: RangeEnds<'m>, counted: Counted) {
        let change = self.tables().unmap_single(&zap, cut).unwrap_or_else(|| {
            let mut gather = MmuGather::new(self.memory.pages(), &self.context);
            self.tables().unmap_cut(&zap, within, cut, &mut gather);
            gather.end()
        });
        self.add_rss(change, counted);
        if counted == Counted::Huge {
            self.memory.huge().take_returned(self.memory.pages());
        }
    }
}
