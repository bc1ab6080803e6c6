//! The use of each frame, as in `/proc/kpageflags`, with the names and numbers of Linux's
//! `Documentation/admin-guide/mm/pagemap.rst` ("Short descriptions to the page flags").
#![forbid(unsafe_code)]

use core::fmt;

use crate::addr::{Frame, FrameRange};
use crate::flags::write_names;
use crate::memmap::DescriptorFlags;
use crate::page_alloc::{CountGroup, FolioMaps, FrameInfo};
use crate::platform::Platform;
use crate::vm::observe::view::PageSurvey;

/// The flags of a frame. Some of Linux's bits are never set: there is no swap and no list of recently used
/// pages, and the file, not the frame, knows whether a page is dirty or being written.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageFlags(pub u64);

impl fmt::Debug for PageFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            ("REFERENCED", Self::REFERENCED),
            ("SLAB", Self::SLAB),
            ("BUDDY", Self::BUDDY),
            ("MMAP", Self::MMAP),
            ("ANON", Self::ANON),
            ("COMPOUND_HEAD", Self::COMPOUND_HEAD),
            ("COMPOUND_TAIL", Self::COMPOUND_TAIL),
            ("HUGE", Self::HUGE),
            ("HWPOISON", Self::HWPOISON),
            ("NOPAGE", Self::NOPAGE),
            ("THP", Self::THP),
            ("ZERO_PAGE", Self::ZERO_PAGE),
            ("PGTABLE", Self::PGTABLE),
        ];
        write_names(f, "PageFlags", self.0, &names)
    }
}

impl PageFlags {
    /// It is a page of a file, and was accessed through a leaf that is gone. (Linux: since it was last
    /// looked at.)
    pub const REFERENCED: u64 = 1 << 2;
    /// It holds small objects.
    pub const SLAB: u64 = 1 << 7;
    /// It is free: in the store, or on a per-CPU list. (Linux: in the store alone.)
    pub const BUDDY: u64 = 1 << 10;
    /// A leaf maps it; with `CountScheme::HeadOnly` (feature `published`), a leaf maps its folio.
    pub const MMAP: u64 = 1 << 11;
    /// It belongs to anonymous memory that is mapped.
    pub const ANON: u64 = 1 << 12;
    /// It is the first frame of a folio of more than one.
    pub const COMPOUND_HEAD: u64 = 1 << 15;
    /// It is another frame of such a folio.
    pub const COMPOUND_TAIL: u64 = 1 << 16;
    /// It belongs to a huge page of a pool.
    pub const HUGE: u64 = 1 << 17;
    /// It went bad.
    pub const HWPOISON: u64 = 1 << 19;
    /// There is no such memory.
    pub const NOPAGE: u64 = 1 << 20;
    /// It belongs to a folio of more than one frame, anonymous or of a file, that is no huge page of a pool.
    pub const THP: u64 = 1 << 22;
    /// It is the frame of zeroes that loads of untouched memory see.
    pub const ZERO_PAGE: u64 = 1 << 24;
    /// It holds a page table.
    pub const PGTABLE: u64 = 1 << 26;

    /// Whether all of these bits are set.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}

/// The folio and the counts around the frame that was looked at last.
#[derive(Default)]
struct Looked {
    folio: Option<FolioMaps>,
    group: Option<CountGroup>,
}

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Shows the flags of these frames in ascending order, in runs of equal flags. A frame is shown as of
    /// some moment of the call: exact if it is not allocated, mapped or freed meanwhile. The caller holds no
    /// lock.
    ///
    /// The descriptor of a frame that is in use, and neither mapped nor held, says whether it is a page table
    /// or holds small objects; the library sets it for its own frames. A kernel that allocates frames for
    /// itself ([`PageAllocator::alloc`](crate::page_alloc::PageAllocator::alloc)) must set it too, or reset
    /// it ([`Descriptor::reset`](crate::memmap::Descriptor::reset)), for them to be shown right.
    pub(crate) fn page_flags(self, frames: FrameRange, mut show: impl FnMut(FrameRange, PageFlags)) {
        let mut open: Option<(FrameRange, PageFlags)> = None;
        let mut looked = Looked::default();
        for at in frames.start.0..frames.end().0 {
            let frame = Frame(at);
            if frame.index_in_block() == 0 {
                self.platform().reschedule_point();
            }
            let flags = self.flags_of(frame, &mut looked);
            match &mut open {
                Some((run, same)) if *same == flags => run.count += 1,
                _ => {
                    if let Some((run, flags)) = open.replace((FrameRange::new(frame, 1), flags)) {
                        show(run, flags);
                    }
                }
            }
        }
        if let Some((run, flags)) = open {
            show(run, flags);
        }
    }

    fn flags_of(self, frame: Frame, looked: &mut Looked) -> PageFlags {
        let pages = self.pages();
        let (head, frames, huge) = match pages.frames().frame_info(frame) {
            FrameInfo::NotMemory => return PageFlags(PageFlags::NOPAGE),
            FrameInfo::Free => return PageFlags(PageFlags::BUDDY),
            FrameInfo::Bad => return PageFlags(PageFlags::HWPOISON),
            FrameInfo::Metadata | FrameInfo::Changing => return PageFlags::default(),
            FrameInfo::InUse { head, frames, huge } => (head, frames, huge),
        };
        if frame == self.zero_frame() {
            return PageFlags(PageFlags::ZERO_PAGE);
        }
        let folio = FrameRange::new(head, frames);
        if looked.folio.is_none_or(|known| known.folio != folio) {
            looked.folio = pages.counts().folio_maps(frame).filter(|maps| maps.folio == folio);
        }
        if !looked.group.is_some_and(|group| group.frames.contains(frame)) {
            looked.group = pages.counts().count_group(frame);
        }
        let folio_mapped = looked.folio.is_some_and(|maps| maps.is_mapped());
        let mapped = folio_mapped && looked.group.is_some_and(|group| group.leaves(frame) > 0);
        let held = looked.group.is_some_and(|group| group.is_held(frame));
        let of_file = (held || huge) && pages.frames().is_of_file(frame);
        let anon = folio_mapped && !of_file;
        let unmapped = !folio_mapped && !held && !huge && frames == 1;
        let own = |flag| unmapped && pages.frames().descriptor_has(frame, flag);
        let bits = [
            (PageFlags::REFERENCED, of_file && pages.frames().is_accessed(frame)),
            (PageFlags::SLAB, own(DescriptorFlags::SLAB)),
            (PageFlags::MMAP, mapped),
            (PageFlags::ANON, anon),
            (PageFlags::COMPOUND_HEAD, frames > 1 && frame == head),
            (PageFlags::COMPOUND_TAIL, frames > 1 && frame != head),
            (PageFlags::HUGE, huge),
            (PageFlags::HWPOISON, pages.frames().bad_frames() > 0 && pages.frames().is_bad(frame)),
            (PageFlags::THP, frames > 1 && !huge && (anon || held)),
            (PageFlags::PGTABLE, own(DescriptorFlags::TABLE)),
        ];
        PageFlags(bits.into_iter().filter(|(_, set)| *set).fold(0, |word, (bit, _)| word | bit))
    }
}
