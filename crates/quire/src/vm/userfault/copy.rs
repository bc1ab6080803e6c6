//! Answers a missing page with the handler's bytes (`UFFDIO_COPY`).

use super::answer::{Answer, AnswerMode, Stop, answer_flags};
use super::bytes::{OwnFrame, PageBytes};
use super::fault::Page;
use crate::addr::{FrameRange, Order, PageSize, VirtAddr};
use crate::arch::EntryFlags;
use crate::error::UserfaultError;
use crate::filemap::FileKind;
use crate::limits::FRAME_SIZE;
use crate::page_alloc::Origin;
use crate::platform::Platform;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::userfault::answer::Answers;
use crate::vm::userfault::changes::FileNotices;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_copy`](crate::vm::Mm::userfault_copy).
    pub(in crate::vm) fn userfault_copy(
        self,
        addr: VirtAddr,
        len: u64,
        mode: AnswerMode,
        mut fill: impl FnMut(u64, &mut PageBytes),
    ) -> Answer {
        let mut ready = None;
        let answer = self.answer_range(addr, len, mode, |at, left| {
            let offset = at.0 - addr.0;
            let space = self.space.read(self.memory.platform());
            let vma = self.answerable(&space, at, left, mode)?;
            if vma.attributes.huge_size().is_some() {
                let mut fill = |inside, bytes: &mut PageBytes| fill(offset + inside, bytes);
                return self.copy_huge(vma, (at, left), mode, &mut fill);
            }
            self.check_vacant(vma, at)?;
            // A frame is filled with no lock held, and mapped by the next attempt at this page.
            let own = match ready.take().filter(|(page, _)| *page == at) {
                Some((_, own)) => own,
                None => {
                    drop(space);
                    let filled = OwnFrame::filled(self.memory, |bytes| fill(offset, bytes));
                    ready = Some((at, filled.map_err(|_| UserfaultError::OutOfMemory)?));
                    return Ok(0);
                }
            };
            match self.put_own(vma, at, own, mode) {
                Ok(()) => Ok(FRAME_SIZE),
                Err((stop, own)) => {
                    ready = Some((at, own));
                    Err(stop)
                }
            }
        });
        drop(ready);
        answer
    }

    /// Checks that a new page may come at `at`: there is none, and the mapping has no pager.
    pub(super) fn check_vacant(self, vma: &Vma, at: VirtAddr) -> Result<(), Stop> {
        let found = self.tables().lookup(at);
        if !found.entry.is_empty() {
            return Err(UserfaultError::Exists.into());
        }
        if found.shared {
            return Err(Stop::Shared);
        }
        if let Backing::File { file, .. } = &vma.attributes.backing
            && matches!(file.node().kind(), FileKind::Paged(_))
        {
            return Err(UserfaultError::Invalid.into());
        }
        match FileNotices::of(self.memory).page_behind(vma, at) {
            Page::Absent => Ok(()),
            Page::There => Err(UserfaultError::Exists.into()),
            Page::None => Err(UserfaultError::BeyondEnd.into()),
        }
    }

    /// Maps a filled frame, and enters it into the file if the mapping is shared; gives it back on failure.
    /// The caller holds the lock for reading.
    pub(super) fn put_own<'a, 'p>(
        self,
        vma: &Vma,
        at: VirtAddr,
        own: OwnFrame<'a, 'p, P>,
        mode: AnswerMode,
    ) -> Result<(), (Stop, OwnFrame<'a, 'p, P>)> {
        let pages = self.memory.pages();
        let folio = FrameRange::folio(own.frame(), Order::FRAME);
        let flags = answer_flags(vma, true, mode);
        if vma.attributes.is_private() {
            let origin = Origin::new(self.family, vma.attributes.origin_of(at));
            if pages.set_origin(folio, origin).is_err() {
                return Err((UserfaultError::OutOfMemory.into(), own));
            }
            // SAFETY: invariant 1: `OwnFrame` gives the frame up once it is mapped.
            if let Err(error) = unsafe { self.tables().map(at, folio, flags.union(EntryFlags::ANON)) } {
                return Err((error.into(), own));
            }
            own.give();
            self.add_anon(1);
            return Ok(());
        }
        let (Backing::File { file, .. }, Some(index)) = (&vma.attributes.backing, vma.file_page(at)) else {
            return Err((UserfaultError::Invalid.into(), own));
        };
        let Some(file) = file.node().enter() else { return Err((Stop::Again, own)) };
        // Check again: from here on the file cannot be cut short.
        if let Err(stop) = self.check_vacant(vma, at) {
            return Err((stop, own));
        }
        if let Err(error) = self.tables().prepare(at, PageSize::Size4K) {
            return Err((error.into(), own));
        }
        match self.memory.files().put_page(pages, &file, index, own.frame()) {
            Ok(true) => own.give(),
            Ok(false) => return Err((UserfaultError::Exists.into(), own)),
            Err(_) => return Err((UserfaultError::OutOfMemory.into(), own)),
        }
        // If a marker has come meanwhile, it stays; the file keeps the page.
        // SAFETY: invariant 1: the page cache holds the page.
        if unsafe { self.tables().map(at, folio, flags) }.is_ok() {
            self.add_file(file.node().kind(), 1);
        }
        Ok(())
    }
}
