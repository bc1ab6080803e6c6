//! Huge pages of a file that are mapped in parts: by leaves of 4 KiB, 2 MiB and 1 GiB, mixed as they come.
//!
//! `MADV_SPLIT` lets tasks map and unmap parts of a shared mapping's huge pages by themselves
//! ([`VmaFlags::SPLIT`](crate::vm::vma::VmaFlags::SPLIT)). It splits no page, and cannot be undone. Then
//!
//! - a fault maps all of a page of which nothing is mapped, else the 2 MiB or 4 KiB at which the walk ended;
//! - `MADV_DONTNEED`, write-protect marks and answers of userfaultfd handlers take any multiple of 4 KiB;
//! - memory that goes bad costs 4 KiB, where a marker comes; the rest of the page stays mapped;
//! - a page that moves to other frames takes its parts along
//!   ([`crate::vm::migrate::huge`](crate::vm::migrate));
//! - `MADV_COLLAPSE` makes large leaves again where all parts are mapped ([`crate::vm::collapse`]).
//!
//! Ends of mappings still lie at ends of huge pages: `munmap`, `mprotect` and `mremap` refuse others.
//!
//! Source: Houghton, "hugetlb: introduce HugeTLB high-granularity mapping" v2 (2023). Unlike it, a collapse
//! refuses a hole or a mark instead of losing it, and frame counts stay exact with every descriptor policy.

use crate::addr::{FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::error::MapError;
use crate::limits::FRAME_SHIFT;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::rss::Counted;

/// A huge page, or a part of one: these frames, from this address on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::vm) struct HugePart {
    pub(in crate::vm) addr: VirtAddr,
    pub(in crate::vm) frames: FrameRange,
}

impl HugePart {
    /// The part of it in a range of addresses that it covers.
    pub(in crate::vm) fn within(self, range: VirtRange) -> Self {
        let start = self.frames.start.add((range.start.0 - self.addr.0) >> FRAME_SHIFT);
        Self { addr: range.start, frames: FrameRange::new(start, range.pages()) }
    }

    /// The rest of it behind so many frames.
    fn behind(self, frames: u64) -> Self {
        let rest = FrameRange::new(self.frames.start.add(frames), self.frames.count - frames);
        Self { addr: self.addr.add(frames << FRAME_SHIFT), frames: rest }
    }

    /// The largest leaf, up to `most`, that fits its start.
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
    /// Maps an unmapped part of a huge page by the largest leaves that fit, without frames that went bad. The
    /// caller holds the lock for reading.
    ///
    /// # Errors
    /// [`MapError::Occupied`] if something is mapped there, [`MapError::OutOfMemory`]; with how many bytes
    /// from the start on were mapped before.
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
                // An empty table may be in the way: try smaller leaves.
                Err(MapError::Occupied) if size > PageSize::Size4K => {
                    most = if size == PageSize::Size1G { PageSize::Size2M } else { PageSize::Size4K };
                }
                Err(error) => return Err((rest.addr.0 - part.addr.0, error)),
            }
        }
        Ok(())
    }

    /// Maps by 4 KiB leaves up to the end of a table or the first frame that went bad. Returns how many
    /// frames it mapped, and how many it dealt with, the bad one included.
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

    /// The largest leaf for the start of a part that maps no frame that went bad.
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
