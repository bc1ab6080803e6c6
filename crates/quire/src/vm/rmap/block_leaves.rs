//! Splits 2 MiB mappings of files when one page must go.
//!
//! A split needs memory for a table. When there is none, or the mapping is not locked, the whole leaf is
//! unmapped: its pages stay in the cache, and faults map them again. So taking pages away cannot fail. It
//! loses no private copies and no marks: a large leaf of a file is no copy, and is split before it is marked.
#![forbid(unsafe_code)]

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Protection};
use crate::error::MmError;
use crate::filemap::{FileClosed, FileKind};
use crate::limits::{BLOCK_FRAMES, BLOCK_SIZE};
use crate::pgtable::Zap;
use crate::platform::Platform;
use crate::tlb::MmuGather;
use crate::vm::mapping::policy::HugeAdvice;
use crate::vm::mapping::vma::{Backing, Vma, VmaFlags};
use crate::vm::rmap::reverse::{FoundSpace, ReverseMap};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::state::Space;

impl Vma {
    /// Whether one leaf may map this aligned range of 2 MiB onto pages of the mapping's file, and if so,
    /// whether it may allow stores. Not where a handler is told of each page. Nor where a file of the pager
    /// can be stored to: each stored page is marked dirty alone, so each needs its own leaf.
    pub(in crate::vm) fn may_map_block(&self, range: VirtRange) -> Option<bool> {
        let Backing::File { file, .. } = &self.attributes.backing else { return None };
        let fits =
            range.len() == BLOCK_SIZE && range.start.is_aligned(BLOCK_SIZE) && self.range.covers(range);
        if !fits || !self.file_page(range.start)?.is_multiple_of(BLOCK_FRAMES as u64) {
            return None;
        }
        let shared = !self.attributes.is_private();
        let stores = match file.node().kind() {
            FileKind::Shmem { .. } => Some(shared),
            FileKind::Paged(_) => {
                let stores = shared && self.attributes.protection.contains(Protection::WRITE);
                (!stores).then_some(false)
            }
            FileKind::Huge { .. } => None,
        };
        let wanted = self.attributes.advice != HugeAdvice::NoHuge && !self.attributes.handler.is_some();
        stores.filter(|_| wanted)
    }
}

impl<P: Platform> FoundSpace<'_, '_, P> {
    /// Removes large leaves that reach over an end of the range, which is part of this mapping of a file. In
    /// locked memory it splits them; otherwise, or when memory is short, it unmaps them into the gather. No
    /// fault maps the pages at the ends meanwhile.
    pub(in crate::vm) fn part_large(&self, vma: &Vma, range: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        for at in [range.start, range.end] {
            gather.finish_busy();
            if self.reaches_over(at) && !(is_locked(vma) && self.tables().split_at(at).is_ok()) {
                self.tables().unmap_around(at, gather);
            }
        }
    }

    /// Unmaps the leaves of a range except private copies. The file is closed.
    pub(in crate::vm) fn unmap_cached(&self, vma: &Vma, range: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        self.part_large(vma, range, gather);
        self.unmap_where(range, gather, is_cached);
    }

    /// Unmaps the leaves of a range except private copies and those marked for a handler. In locked memory it
    /// unmaps nothing if a leaf must be split and memory is short. The file is closed.
    pub(in crate::vm) fn unmap_plain(&self, vma: &Vma, range: VirtRange, gather: &mut MmuGather<'_, '_, P>) {
        gather.finish_busy();
        if is_locked(vma) && self.tables().split_ends(range).is_err() {
            return;
        }
        self.part_large(vma, range, gather);
        self.unmap_where(range, gather, |leaf| is_cached(leaf) && !leaf.has(EntryFlags::UFFD_WP));
    }

    /// Whether [`Self::unmap_plain`] would leave a leaf mapped because it is marked for a handler.
    pub(in crate::vm) fn has_marked(&self, range: VirtRange) -> bool {
        let mut marked = false;
        self.tables().runs(range, |run| marked |= is_cached(run.first) && run.first.has(EntryFlags::UFFD_WP));
        marked
    }

    fn unmap_where(
        &self,
        range: VirtRange,
        gather: &mut MmuGather<'_, '_, P>,
        wanted: impl Fn(Entry) -> bool,
    ) {
        gather.finish_busy();
        self.tables().runs(range, |run| {
            if wanted(run.first) {
                let leaves = VirtRange::from_len(run.addr, run.count * run.size.bytes());
                let done = self.tables().unmap(&Zap::leaves(leaves.intersect(range)), gather);
                debug_assert_eq!(done, Ok(()), "no large leaf reaches over the ends");
                // The walk waits for entries that other tasks replace.
                gather.finish_busy();
            }
        });
    }

    /// The range without the large leaves that reach over its ends.
    pub(in crate::vm) fn between_large(&self, range: VirtRange) -> VirtRange {
        let cut = |at: VirtAddr| self.reaches_over(at);
        let start =
            if cut(range.start) { range.start.align_down(BLOCK_SIZE).add(BLOCK_SIZE) } else { range.start };
        let end = if cut(range.end) { range.end.align_down(BLOCK_SIZE) } else { range.end };
        VirtRange::new(start.min(end), end)
    }

    /// Whether a leaf of 2 MiB maps memory on both sides of an address.
    fn reaches_over(&self, at: VirtAddr) -> bool {
        !at.is_aligned(BLOCK_SIZE) && self.tables().lookup(at).leaf_size() == Some(PageSize::Size2M)
    }
}

/// Whether a leaf maps a page of the file, and no private copy.
fn is_cached(leaf: Entry) -> bool {
    !leaf.has(EntryFlags::ANON) && !leaf.has(EntryFlags::SPECIAL)
}

fn is_locked(vma: &Vma) -> bool {
    vma.attributes.flags.contains(VmaFlags::LOCKED)
}

impl<P: Platform> ReverseMap<'_, '_, P> {
    /// Splits every large leaf that maps a page of a closed file. Returns whether there was enough memory.
    pub(in crate::vm) fn split_around(self, file: &FileClosed<'_>, index: u64) -> bool {
        let (page, mut done) = (index..index + 1, true);
        self.each_mapper(file.node(), &page, |found| {
            found.each_part(&page, |_, range| done &= found.tables().split_ends(range).is_ok());
        });
        done
    }
}

/// Splits the large leaves onto pages of files in a range before they are marked: unmapping other pages later
/// must keep the marks without needing memory. The lock is held for writing.
pub(in crate::vm) fn split_to_mark<P: Platform>(
    mm: &AddressSpace<'_, P>,
    space: &Space,
    range: VirtRange,
) -> Result<(), MmError> {
    let of_file = |vma: &&Vma| !vma.attributes.is_anonymous() && vma.attributes.huge_size().is_none();
    let mut done = Ok(());
    for vma in space.tree.overlapping(range).filter(of_file) {
        mm.tables().runs(vma.range.intersect(range), |run| {
            if run.size == PageSize::Size2M && done.is_ok() {
                done = mm.cut_at(run.addr.add(PageSize::Size4K.bytes()));
            }
        });
    }
    done
}
