//! Answers a minor fault: maps the file's own page (`UFFDIO_CONTINUE`).

use super::answer::{Answer, AnswerMode, Stop, answer_flags};
use super::fault::Page;
use crate::addr::{FrameRange, Order, VirtAddr};
use crate::error::UserfaultError;
use crate::filemap::{FileKind, FileRef};
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::fault::faults::Faults;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::userfault::answer::Answers;
use crate::vm::userfault::changes::FileNotices;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_continue`](crate::vm::Mm::userfault_continue).
    pub(in crate::vm) fn userfault_continue(self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        self.answer_range(addr, len, mode, |at, left| {
            let space = self.space.read(self.memory.platform());
            let vma = self.answerable(&space, at, left, mode)?;
            if vma.attributes.huge_size().is_some() {
                return self.resume_huge(vma, (at, left), mode);
            }
            let missing = self.resume_page(vma, at, mode)?;
            drop(space);
            let Some((file, index)) = missing else { return Ok(FRAME_SIZE) };
            Faults::of(self.0).read_page(file, index)?;
            Ok(0)
        })
    }

    /// Maps a page that the file has. Returns the page instead if the caller must bring it into memory first,
    /// without the lock.
    fn resume_page(self, vma: &Vma, at: VirtAddr, mode: AnswerMode) -> Result<Option<(FileRef, u64)>, Stop> {
        let (Backing::File { file: reference, .. }, Some(index)) =
            (&vma.attributes.backing, vma.file_page(at))
        else {
            return Err(UserfaultError::Invalid.into());
        };
        // Until this is dropped, the file keeps its pages.
        let Some(file) = reference.node().enter() else { return Err(Stop::Again) };
        let found = self.tables().lookup(at);
        if !found.entry.is_empty() {
            return Err(UserfaultError::Exists.into());
        }
        match FileNotices::of(self.memory).page_behind(vma, at) {
            // The look-up below refuses a lost page.
            Page::There | Page::None => {}
            Page::Absent => return Err(UserfaultError::NotThere.into()),
        }
        let Some(frame) = self.memory.files().page_at_hand(self.memory.pages(), &file, index)? else {
            return Ok(Some((reference.again(), index)));
        };
        let kind = file.node().kind();
        // The first store to a page of the pager must fault; stores to shared anonymous memory need not.
        let writable = !vma.attributes.is_private() && matches!(kind, FileKind::Shmem { .. });
        let flags = answer_flags(vma, writable, mode);
        // SAFETY: invariant 1: the page cache holds the page.
        unsafe { self.tables().map(at, FrameRange::folio(frame, Order::FRAME), flags) }?;
        self.add_file(kind, 1);
        Ok(None)
    }
}
