//! The frame and the state of each page: the words of `/proc/PID/pagemap`.
//!
//! Source: Linux, `Documentation/admin-guide/mm/pagemap.rst`.
#![forbid(unsafe_code)]

use crate::addr::{Frame, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::limits::FRAME_SHIFT;
use crate::platform::Platform;
use crate::vm::observe::mapped::Mapped;
use crate::vm::observe::view::Observation;

/// The word of one page; zero for a page that is not in memory. No page is swapped out (bit 62), and a marker
/// of lost memory is no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageWord(pub u64);

impl PageWord {
    /// The page was stored to since the mark was cleared.
    pub const SOFT_DIRTY: u64 = 1 << 55;
    /// No other page, here or elsewhere, is in the same frame.
    pub const EXCLUSIVE: u64 = 1 << 56;
    /// It is write-protected for a userfaultfd handler.
    pub const UFFD_WP: u64 = 1 << 57;
    /// It is a page of a file, or of memory that is shared.
    pub const FILE: u64 = 1 << 61;
    /// It is swapped out: never set.
    pub const SWAPPED: u64 = 1 << 62;
    /// It is in memory.
    pub const PRESENT: u64 = 1 << 63;

    /// The word of the first of these pages; each following page names the next frame.
    fn first_of(pages: &Mapped) -> Self {
        let zero = pages.has(EntryFlags::SPECIAL);
        let bits = [
            (Self::SOFT_DIRTY, pages.has(EntryFlags::SOFT_DIRTY)),
            (Self::EXCLUSIVE, !zero && pages.spaces == 1),
            (Self::UFFD_WP, pages.has(EntryFlags::UFFD_WP)),
            (Self::FILE, !zero && !pages.has(EntryFlags::ANON)),
            (Self::PRESENT, true),
        ];
        let set = bits.into_iter().filter(|(_, set)| *set).fold(0, |word, (bit, _)| word | bit);
        Self(pages.frames.start.0 | set)
    }

    /// The frame that the page is in (bits 0 to 54), if it is in memory.
    pub const fn frame(self) -> Option<Frame> {
        if self.has(Self::PRESENT) { Some(Frame(self.0 & (Self::SOFT_DIRTY - 1))) } else { None }
    }

    /// Whether all of these bits are set.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}

impl<P: Platform> Observation<'_, '_, P> {
    /// See [`Mm::pagemap`](crate::vm::Mm::pagemap).
    pub(in crate::vm) fn pagemap(self, range: VirtRange, mut show: impl FnMut(VirtAddr, PageWord)) {
        self.mapped(range, |pages| {
            let first = PageWord::first_of(pages);
            for at in 0..pages.frames.count {
                show(pages.addr.add(at << FRAME_SHIFT), PageWord(first.0 + at));
            }
        });
    }
}
