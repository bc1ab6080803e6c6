//! Huge pages of a file that are mapped in parts: by leaves of 4 KiB, 2 MiB and 1 GiB, mixed as they come.
//!
//! `MADV_SPLIT` says for whole huge pages of a shared mapping that parts of them may come and go by themselves
//! ([`VmaFlags::SPLIT`](crate::vm::vma::VmaFlags::SPLIT)). It splits nothing, and is for good. From then on
//!
//! - a fault maps what the walk ended at: all of a page of which nothing is mapped, else the 2 MiB or 4 KiB
//!   that is missing;
//! - `MADV_DONTNEED`, write-protect marks and the answers of a userfaultfd handler take any multiple of 4 KiB;
//! - memory that goes bad costs 4 KiB, not the page: a marker there, and the rest stays mapped;
//! - `MADV_COLLAPSE` makes large leaves of what is mapped whole again ([`crate::vm::collapse`]).
//!
//! Ends of mappings still lie at ends of huge pages: `munmap`, `mprotect` and `mremap` refuse others.
//!
//! Source: Houghton, "hugetlb: introduce HugeTLB high-granularity mapping" v2 (2023). Where that loses
//! something, this does not: a collapse that meets a hole or a mark refuses, and counts of frames stay exact
//! with every descriptor policy.

use crate::addr::{FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::MapError;
use crate::limits::FRAME_SHIFT;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::Counted;

/// A huge page, or a part of one, in its place: from this address on these frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vm) struct HugePart {
    pub(in crate::vm) addr: VirtAddr,
    pub(in crate::vm) frames: FrameRange,
}

impl HugePart {
    /// What of it lies in a range of addresses that it covers.
    pub(in crate::vm) fn within(self, range: VirtRange) -> Self {
        let start = self.frames.start.add((range.start.0 - self.addr.0) >> FRAME_SHIFT);
        Self { addr: range.start, frames: FrameRange::new(start, range.pages()) }
    }

    /// What is left of it behind so many frames.
    fn behind(self, frames: u64) -> Self {
        let rest = FrameRange::new(self.frames.start.add(frames), self.frames.count - frames);
        Self { addr: self.addr.add(frames << FRAME_SHIFT), frames: rest }
    }

    /// The largest leaf that fits its start.
    fn leaf(self, most: PageSize) -> PageSize {
        let fits = |size: &PageSize| {
            *size <= most
                && self.addr.is_aligned(size.bytes())
                && self.frames.start.is_aligned(size.order())
                && self.frames.count >= size.frames()
        };
        [PageSize::Size1G, PageSize::Size2M].into_iter().find(fits).unwrap_or(PageSize::Size4K)
    }
}

handle! {
    /// Parts of huge pages, each mapped by the largest leaves that fit.
    HugeParts of AddressSpace
}

impl<P: Platform> HugeParts<'_, '_, P> {
    /// Maps a part of a huge page, in which nothing is mapped, by the largest leaves that fit; memory that
    /// went bad is left out. The lock is held for reading.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when something is mapped there already, [`MapError::OutOfMemory`]; with how
    /// many bytes from the start were mapped before.
    pub(in crate::vm) fn map_huge_part(
        self,
        part: HugePart,
        flags: EntryFlags,
    ) -> Result<(), (u64, MapError)> {
        let (mut rest, mut most) = (part, PageSize::Size1G);
        while rest.frames.count > 0 {
            let size = self.good_leaf(rest, most);
            let done = match size {
                PageSize::Size4K => self.map_small_part(rest, flags),
                _ => {
                    // SAFETY: invariant 1: the file's pool page stays while the place is claimed.
                    let mapped =
                        unsafe { self.tables().map_large(rest.addr, rest.frames.start, size, flags) };
                    mapped.map(|()| (size.frames(), size.frames()))
                }
            };
            match done {
                Ok((mapped, passed)) => {
                    self.rss.add_as(self.memory.platform(), Counted::Huge, mapped as i64);
                    rest = rest.behind(passed);
                    most = PageSize::Size1G;
                }
                // A table may be in the way, and nothing in it.
                Err(MapError::Occupied) if size > PageSize::Size4K => {
                    most = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
                }
                Err(error) => return Err((rest.addr.0 - part.addr.0, error)),
            }
        }
        Ok(())
    }

    /// Maps by 4 KiB leaves up to the end of a table, or past a frame that went bad, which is left out; how
    /// many frames.
    fn map_small_part(self, part: HugePart, flags: EntryFlags) -> Result<(u64, u64), MapError> {
        let pages = self.memory.pages();
        let table = PageSize::Size2M.frames() - (part.addr.0 >> FRAME_SHIFT) % PageSize::Size2M.frames();
        let count = part.frames.count.min(table);
        let is_bad =
            |at: &u64| pages.frames().bad_frames() > 0 && pages.frames().is_bad(part.frames.start.add(*at));
        let good = (0..count).find(is_bad).unwrap_or(count);
        if good > 0 {
            // SAFETY: invariant 1: the file's pool page stays while the place is claimed.
            unsafe { self.tables().map(part.addr, FrameRange::new(part.frames.start, good), flags) }?;
        }
        Ok((good, count.min(good + 1)))
    }

    /// The largest leaf for the start of a part that maps nothing that went bad.
    fn good_leaf(self, part: HugePart, most: PageSize) -> PageSize {
        let pages = self.memory.pages();
        let bad = |size: PageSize| {
            let blocks = FrameRange::new(part.frames.start, size.frames()).by_block();
            pages.frames().bad_frames() > 0
                && blocks.into_iter().any(|block| pages.frames().has_bad_in_block(block.start))
        };
        match part.leaf(most) {
            PageSize::Size1G if bad(PageSize::Size1G) => self.good_leaf(part, PageSize::Size2M),
            PageSize::Size2M if bad(PageSize::Size2M) => PageSize::Size4K,
            size => size,
        }
    }
}
