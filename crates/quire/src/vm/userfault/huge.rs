//! Answers for huge pages: whole ones, and parts of 4 KiB and more where parts may be mapped by themselves.
//!
//! A file has a whole huge page or nothing, so it does not know which parts a handler has answered. An answer
//! writes a part's contents into the file's page and then maps the part; the other parts may hold anything.
//! So `copy` and `zeropage` ask the page table which parts exist, not the file.

use super::answer::{AnswerMode, Stop, answer_flags};
use super::bytes::{OwnFrame, PageBytes, fill_frames};
use super::fault::Page;
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::EntryFlags;
use crate::clear::Extent;
use crate::error::{Cancelled, FaultError, MapError, UserfaultError};
use crate::filemap::HugePage;
use crate::limits::{FRAME_SHIFT, FRAME_SIZE};
use crate::platform::{Platform, TouchHint};
use crate::vm::fault::HugePlace;
use crate::vm::fault::faults::Faults;
use crate::vm::fault::step::{Caller, FaultKind, Step};
use crate::vm::gigantic::file::FileClears;
use crate::vm::hugetlb::file::HugeFiles;
use crate::vm::hugetlb::parts::{HugePart, HugeParts};
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::mapping::vma::{Vma, VmaFlags};
use crate::vm::userfault::answer::Answers;
use crate::vm::userfault::changes::FileNotices;

impl<P: Platform> Answers<'_, '_, P> {
    /// Answers with what `fill` writes: a whole page, or the 4 KiB at `at`. Returns how many bytes that are.
    /// The caller holds the lock for reading.
    pub(super) fn copy_huge(
        self,
        vma: &Vma,
        (at, left): (VirtAddr, u64),
        mode: AnswerMode,
        fill: &mut dyn FnMut(u64, &mut PageBytes),
    ) -> Result<u64, Stop> {
        let Some(place) = Faults::of(self.0).place_of(vma, at) else { return Err(Stop::Again) };
        let there = self.check_huge(vma, &place, at)?;
        let memory = self.memory;
        if there.is_none() && at == place.start && left >= place.size.bytes() {
            let fill = |frame| {
                memory.pages().frames().forget_huge_zeroes(frame, place.size.order());
                // SAFETY: invariant 1: the page was just taken from its pool, and no other code knows it.
                unsafe { fill_frames(memory.platform(), FrameRange::folio(frame, place.size.order()), fill) };
                Ok(())
            };
            return self.bring_huge(vma, &place, left, mode, fill);
        }
        let own =
            OwnFrame::filled(memory, |bytes| fill(0, bytes)).map_err(|_| UserfaultError::OutOfMemory)?;
        let page = self.page_of_file(vma, &place, there)?;
        let part = part_of(&place, page, at, FRAME_SIZE);
        self.tables().prepare(at, PageSize::Size4K)?;
        memory.files().copy_to_huge_page(memory.platform(), own.frame(), part.frames.start);
        self.map_answer(part, answer_flags(vma, true, mode))
    }

    /// Answers with zeroes: a whole page, the rest of one that the file did not have, or the 4 KiB at `at`.
    pub(super) fn zero_huge(
        self,
        vma: &Vma,
        (at, left): (VirtAddr, u64),
        mode: AnswerMode,
    ) -> Result<u64, Stop> {
        let Some(place) = Faults::of(self.0).place_of(vma, at) else { return Err(Stop::Again) };
        let there = self.check_huge(vma, &place, at)?;
        if there.is_none() && at == place.start && left >= place.size.bytes() {
            self.check_clear(vma, &place)?;
            return self.bring_huge(vma, &place, left, mode, |frame| self.clear_whole(&place, frame));
        }
        let page = self.page_of_file(vma, &place, there)?;
        let rest = left.min(place.start.0 + place.size.bytes() - at.0);
        let part = part_of(&place, page, at, if there.is_some() { FRAME_SIZE } else { rest });
        self.tables().prepare(at, PageSize::Size4K)?;
        if there.is_some() {
            let inside = at.0 - place.start.0;
            let (files, platform) = (self.memory.files(), self.memory.platform());
            files.clear_in_huge_page(platform, page, inside..inside + FRAME_SIZE);
        }
        self.map_answer(part, answer_flags(vma, true, mode))
    }

    /// Maps the file's page from `at` on by the largest leaves that fit.
    pub(super) fn resume_huge(
        self,
        vma: &Vma,
        (at, left): (VirtAddr, u64),
        mode: AnswerMode,
    ) -> Result<u64, Stop> {
        if vma.attributes.is_private() {
            return Err(UserfaultError::Invalid.into());
        }
        let Some(place) = Faults::of(self.0).place_of(vma, at) else { return Err(Stop::Again) };
        if !self.tables().lookup(at).entry.is_empty() {
            return Err(UserfaultError::Exists.into());
        }
        let page = match (FileNotices::of(self.memory).page_behind(vma, at), self.huge_page_at(&place)) {
            (Page::There, Some(HugePage::Present { frame, .. })) => {
                self.check_complete(frame)?;
                frame
            }
            (Page::None, Some(HugePage::Present { .. })) => return Err(UserfaultError::Poisoned.into()),
            (Page::None, _) => return Err(UserfaultError::BeyondEnd.into()),
            _ => return Err(UserfaultError::NotThere.into()),
        };
        let rest = left.min(place.start.0 + place.size.bytes() - at.0);
        self.map_answer(part_of(&place, page, at, rest), answer_flags(vma, true, mode))
    }

    /// Checks that an answer may map something at `at`. Refuses it if the file has the page and the mapping
    /// maps pages whole; returns the file's page if it maps parts.
    fn check_huge(self, vma: &Vma, place: &HugePlace<'_>, at: VirtAddr) -> Result<Option<Frame>, Stop> {
        let splits = vma.attributes.flags.contains(VmaFlags::SPLIT);
        let found = self.tables().lookup(at);
        match (FileNotices::of(self.memory).page_behind(vma, at), self.huge_page_at(place)) {
            _ if !found.entry.is_empty() => Err(UserfaultError::Exists.into()),
            _ if found.shared => Err(Stop::Shared),
            (Page::Absent, _) => Ok(None),
            (Page::There, Some(HugePage::Present { frame, .. })) if splits => {
                self.check_complete(frame).map(|()| Some(frame))
            }
            (Page::There, _) => Err(UserfaultError::Exists.into()),
            (Page::None, Some(HugePage::Present { .. })) => Err(UserfaultError::Poisoned.into()),
            (Page::None, _) => Err(UserfaultError::BeyondEnd.into()),
        }
    }

    /// Stops where a file's page is still cleared piece by piece.
    fn check_complete(self, page: Frame) -> Result<(), Stop> {
        FileClears::of(self.memory).completes(page).map_or(Ok(()), |step| Err(Stop::Step(step)))
    }

    /// Takes a page from the pool, fills it and maps it whole: as the file's page, or as a private one.
    fn bring_huge(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        left: u64,
        mode: AnswerMode,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<u64, Stop> {
        debug_assert!(left >= place.size.bytes());
        let flags = answer_flags(vma, true, mode);
        self.tables().prepare(place.start, place.size.leaf())?;
        if !vma.attributes.is_private() {
            let frame = self.fill_page_of_file(vma, place, fill)?;
            return self.map_answer(part_of(place, frame, place.start, place.size.bytes()), flags);
        }
        let own = Faults::of(self.0).own_page(vma, place, true, fill)?;
        let flags = flags.union(EntryFlags::ANON);
        let step = Faults::of(self.0).map_huge(place, own.frame, flags, FaultKind::Anon);
        match step {
            Ok(Step::Done(_)) => Ok(place.size.bytes()),
            Ok(Step::Marked(folio)) => Err(Stop::Step(Step::Marked(folio))),
            step => {
                Faults::of(self.0).give_up_own(place.size, &own);
                Err(step.map_or_else(Stop::from, Stop::Step))
            }
        }
    }

    /// The file's page, a new one of zeroes if the file has none.
    fn page_of_file(self, vma: &Vma, place: &HugePlace<'_>, there: Option<Frame>) -> Result<Frame, Stop> {
        match there {
            Some(frame) => Ok(frame),
            None => {
                self.check_clear(vma, place)?;
                Ok(self.fill_page_of_file(vma, place, |frame| self.clear_whole(place, frame))?)
            }
        }
    }

    /// Stops where a page should first be cleared in its pool.
    fn check_clear(self, vma: &Vma, place: &HugePlace<'_>) -> Result<(), Stop> {
        let caller = Caller::Populate { bytes: place.size.bytes() };
        let step = Faults::of(self.0).clear_first(vma, place, self.is_reserved(place), caller);
        step.map_or(Ok(()), |step| Err(Stop::Step(step)))
    }

    fn is_reserved(self, place: &HugePlace<'_>) -> bool {
        matches!(self.huge_page_at(place), Some(HugePage::Reserved { .. }))
    }

    fn fill_page_of_file(
        self,
        vma: &Vma,
        place: &HugePlace<'_>,
        fill: impl FnOnce(Frame) -> Result<(), Cancelled>,
    ) -> Result<Frame, FaultError> {
        let request = Reservations::of(self.0).request(&vma.attributes, self.is_reserved(place), place.index);
        HugeFiles::of(self.memory).fill_huge(place.file.node(), (place.size, place.index), request, fill)
    }

    fn clear_whole(self, place: &HugePlace<'_>, frame: Frame) -> Result<(), Cancelled> {
        let frames = FrameRange::folio(frame, place.size.order());
        let extent = Extent::new(frames, TouchHint::Unknown).part_of(place.size.bytes());
        // SAFETY: invariant 1: the page was just taken from its pool, and the file does not name it yet.
        unsafe { self.memory.pages().store().clear_huge(&extent, place.size.order()) }
    }

    fn huge_page_at(self, place: &HugePlace<'_>) -> Option<HugePage> {
        self.memory.files().huge_page(self.memory.platform(), place.file.node(), place.index)
    }

    /// Maps a part of a file's page up to the first entry in the way; returns how many bytes (0: look again).
    fn map_answer(self, part: HugePart, flags: EntryFlags) -> Result<u64, Stop> {
        let bytes = part.frames.count << FRAME_SHIFT;
        let (mut done, mut error) = match HugeParts::of(self.0).map_huge_part(part, flags) {
            Ok(()) => return Ok(bytes),
            Err(stopped) => stopped,
        };
        if error == MapError::Occupied {
            // Each table is filled as a whole or not at all: map the rest up to the first entry in the way.
            let ahead = (done..bytes).step_by(FRAME_SIZE as usize);
            let vacant = ahead.take_while(|&at| self.tables().lookup(part.addr.add(at)).entry.is_empty());
            let rest = (vacant.count() as u64) << FRAME_SHIFT;
            let part = part.within(VirtRange::from_len(part.addr.add(done), rest));
            match HugeParts::of(self.0).map_huge_part(part, flags) {
                // `done + rest` is 0 when another CPU mapped something after the caller had looked.
                Ok(()) => return Ok(done + rest),
                Err((more, why)) => (done, error) = (done + more, why),
            }
        }
        if done > 0 { Ok(done) } else { Err(error.into()) }
    }
}

/// The part of `page` that stands at `at`, `bytes` long.
fn part_of(place: &HugePlace<'_>, page: Frame, at: VirtAddr, bytes: u64) -> HugePart {
    let whole = HugePart { addr: place.start, frames: FrameRange::folio(page, place.size.order()) };
    whole.within(VirtRange::from_len(at, bytes))
}
