//! Collapse: 2 MiB of small pages become one folio, mapped by one leaf.
//!
//! Where the pages stand in one block in order already, only the shape of the page table changes. Else they are copied to a new
//! folio ([`anon`]), or moved to a block of their own if they are pages of a file ([`mod@file`]), by call ([`Mm::collapse`]) or in the background ([`scan`]). The way back is [`underused`]: a folio of which
//! most is zero is split, and the zeroes are given up.
//!
//! (Linux: `mm/khugepaged.c`; Documentation/admin-guide/mm/transhuge.rst. It clears the entry above the table, copies with
//! everybody kept out, and holds the address space's lock for writing meanwhile.)

mod anon;
mod file;
mod huge;
mod limits;
mod report;
mod scan;
mod underused;

pub use huge::CollapseSteps;
pub use limits::CollapseLimits;
pub use report::{Collapsed, Refusal};
pub use scan::{Collapser, Scanned};
pub(super) use underused::WhenShort;
pub use underused::{Splitter, Underused};

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::error::MmError;
use crate::limits::{BLOCK_SIZE, FRAME_SIZE};
use crate::platform::Platform;
use crate::vm::space::mm::Mm;
use crate::vm::verbs::madvise::covers;

use limits::Terms;

impl<P: Platform> Mm<'_, P> {
    /// Makes one folio, mapped by one leaf, of each aligned 2 MiB of private anonymous memory in `len` bytes (rounded up to
    /// pages) from `addr`, whatever the folio policy says and however many holes there are; not where
    /// [`Advice::NoHugePage`](super::Advice::NoHugePage) was given. Pages of files are brought into one block in order, for all who
    /// map them, and mapped by one leaf: those of nameless memory, and of others where the mapping cannot store to them;
    /// what is missing of them is read. In mappings of huge pages whose parts may be mapped by
    /// themselves ([`Advice::Split`](super::Advice::Split)) the largest leaves that the range covers come in the places of smaller ones. What became of each is in the answer. As `MADV_COLLAPSE`.
    ///
    /// Everybody goes on using the memory: who touches a page of a file that moves waits for at most
    /// [`COLLAPSE_FILE_PAGES`](crate::limits::COLLAPSE_FILE_PAGES) to be copied. Who touches other memory waits for a flush and at most
    /// [`COLLAPSE_RECOPIED`](crate::limits::COLLAPSE_RECOPIED) pages to be copied, more only if a program stores faster than
    /// [`COLLAPSE_ROUNDS`](crate::limits::COLLAPSE_ROUNDS) rounds can copy.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for an unaligned address or an overflow, [`MmError::NoMemory`] where nothing is mapped in a part of
    /// the range; the rest was collapsed then.
    pub fn collapse(&self, addr: VirtAddr, len: u64) -> Result<Collapsed, MmError> {
        self.collapse_in(addr, len, CollapseSteps::Staged)
    }

    /// As [`Self::collapse`], with pages of 1 GiB in these steps.
    ///
    /// # Errors
    /// As [`Self::collapse`].
    pub fn collapse_in(&self, addr: VirtAddr, len: u64, steps: CollapseSteps) -> Result<Collapsed, MmError> {
        let pages = VirtAddr(len).align_up(FRAME_SIZE).ok_or(MmError::Invalid)?.0;
        let end = addr.0.checked_add(pages).map(VirtAddr).ok_or(MmError::Invalid)?;
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        let covered = covers(&self.space.read(self.memory.platform()), VirtRange::new(addr, end));
        let mut report = Collapsed::default();
        let mut at = addr.align_up(BLOCK_SIZE).ok_or(MmError::Invalid)?;
        while at < end && end.0 - at.0 >= BLOCK_SIZE && !self.memory.platform().is_dying() {
            // However long the range is, only what is mapped of it is gone through.
            let Some(start) = self.first_mapped(VirtRange::new(at, end)) else { break };
            if start > at {
                at = start;
                continue;
            }
            let huge = self.huge_extent(at, end);
            let extent = VirtRange::from_len(at, huge.map_or(BLOCK_SIZE, PageSize::bytes));
            report.note(match huge {
                Some(size) => self.collapse_huge(extent, size, steps),
                None => self.memory.collapse_extent(self.body(), extent, &Terms::Forced),
            });
            at = extent.end;
            self.memory.platform().reschedule_point();
        }
        covered.map(|()| report)
    }

    /// The first multiple of 2 MiB in a range whose 2 MiB begin in, or before, a mapping. The range begins at one.
    fn first_mapped(&self, range: VirtRange) -> Option<VirtAddr> {
        let space = self.space.read(self.memory.platform());
        space.tree.first_in(range).map(|vma| vma.range.start.align_down(BLOCK_SIZE).max(range.start))
    }
}
