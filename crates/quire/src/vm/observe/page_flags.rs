//! What each frame is used for: what `/proc/kpageflags` says.
//!
//! Source: Linux, `Documentation/admin-guide/mm/pagemap.rst` ("Short descriptions to the page flags"), whose
//! names and numbers these are.
#![forbid(unsafe_code)]

use core::fmt;

use crate::addr::{Frame, FrameRange};
use crate::flags::write_names;
use crate::memmap::DescriptorFlags;
use crate::page_alloc::{CountGroup, FolioMaps, FrameInfo};
use crate::platform::Platform;
use crate::vm::observe::view::PageSurvey;

/// The word of a frame. Bits that Linux has and this library has no thing for are never set: there is no
/// swap, no list of recently used pages, and what of a page of a file is dirty or being written stands with
/// the file.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageFlags(pub u64);

impl fmt::Debug for PageFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
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
    /// It holds small objects.
    pub const SLAB: u64 = 1 << 7;
    /// It is free: in the store, or on a per-CPU list. (Linux: in the store alone.)
    pub const BUDDY: u64 = 1 << 10;
    /// Some leaf maps it; where one number counts all of a folio (`CountScheme::HeadOnly`, with the feature
    /// `published`), some leaf maps the folio.
    pub const MMAP: u64 = 1 << 11;
    /// It belongs to anonymous memory that is mapped.
    pub const ANON: u64 = 1 << 12;
    /// The first frame of a folio of more than one.
    pub const COMPOUND_HEAD: u64 = 1 << 15;
    /// Another frame of such a folio.
    pub const COMPOUND_TAIL: u64 = 1 << 16;
    /// It belongs to a page of a pool.
    pub const HUGE: u64 = 1 << 17;
    /// It went bad.
    pub const HWPOISON: u64 = 1 << 19;
    /// There is no such memory.
    pub const NOPAGE: u64 = 1 << 20;
    /// It belongs to a folio of more than one frame, anonymous or of a file, that is no page of a pool.
    pub const THP: u64 = 1 << 22;
    /// The frame of zeroes that reads of untouched memory see.
    pub const ZERO_PAGE: u64 = 1 << 24;
    /// It holds a page table.
    pub const PGTABLE: u64 = 1 << 26;

    /// Whether all of these bits are set.
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}

/// What is known of the frames that were looked at last.
#[derive(Default)]
struct Looked {
    folio: Option<FolioMaps>,
    group: Option<CountGroup>,
}

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Shows what each of these frames is used for, in ascending order, runs of frames with the same word
    /// together. Each frame as it was at some moment of the call, so exact for those that are not allocated,
    /// mapped or freed meanwhile. The caller holds no lock.
    ///
    /// Whether a frame that is in use, and neither mapped nor held, is a page table or holds small objects is
    /// said by its descriptor, which the library keeps for its own. A kernel that takes frames for itself
    /// ([`PageAllocator::alloc`](crate::page_alloc::PageAllocator::alloc)) and wants them shown right does
    /// likewise, or resets the descriptor ([`Descriptor::reset`](crate::memmap::Descriptor::reset)).
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
        let anon = folio_mapped && !((held || huge) && pages.frames().is_of_file(frame));
        let nobodys = !folio_mapped && !held && !huge && frames == 1;
        let own = |flag| nobodys && pages.frames().descriptor_has(frame, flag);
        let bits = [
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
