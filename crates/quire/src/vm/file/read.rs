//! Reads a file as `read(2)` does, through the page cache, so that what mappings stored is seen.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::Frame;
use crate::error::{FaultError, MmError};
use crate::filemap::{FileKind, FileNode, FileUse, HugePage, PageLookup};
use crate::limits::{FRAME_SIZE, RECLAIM_ROUNDS};
use crate::platform::Platform;
use crate::vm::file::handle::File;
use crate::vm::gigantic::file::FileClears;
use crate::vm::handle::handle;
use crate::vm::reclaim::shrink::Reclaim;
use crate::vm::space::shared::MmShared;

const PAGE: usize = FRAME_SIZE as usize;

impl<P: Platform> File<'_, P> {
    /// The size of the file in bytes. Asks the pager.
    pub fn size(&self) -> u64 {
        self.node().size(self.memory().platform())
    }

    /// Copies bytes of the file from `offset` on to `bytes`, and returns how many: fewer only where the file
    /// ends. A page that is missing is read by the pager, or is zeroes, for which no memory is allocated.
    ///
    /// `bytes` is memory of the kernel, so that no fault on the same page can come meanwhile. The caller
    /// holds no lock. May block in the pager.
    ///
    /// # Errors
    /// [`MmError::Io`] when the pager fails or the contents of the first page are lost, [`MmError::NoMemory`].
    /// When bytes before that were copied, their number is returned instead.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, MmError> {
        Reader::of(self.memory().sleepable()).read(self.node(), offset, bytes)
    }
}

handle! { Reader of MmShared }

impl<P: Platform> Reader<'_, '_, P> {
    fn read(self, file: &FileNode, offset: u64, bytes: &mut [u8]) -> Result<usize, MmError> {
        let left = file.size(self.platform()).saturating_sub(offset);
        let wanted = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < wanted {
            let (index, inside) = part_at(offset + done as u64, wanted - done);
            let part = &mut bytes[done..done + inside.len()];
            match self.read_page(file, index, inside.start, part) {
                Ok(()) => done += part.len(),
                // The file was made shorter meanwhile.
                Err(FaultError::BeyondEnd) => break,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error_of(error)),
            }
            self.platform().reschedule_point();
        }
        Ok(done)
    }

    fn read_page(self, file: &FileNode, index: u64, at: usize, part: &mut [u8]) -> Result<(), FaultError> {
        self.with_user(file, |user| {
            match self.page_to_read(user, index)? {
                Some(frame) => self.files().read_frame(self.platform(), frame, at, part),
                None => part.fill(0),
            }
            Ok(())
        })
    }

    /// The frame of a page; `None` for a hole.
    fn page_to_read(self, file: &FileUse<'_>, index: u64) -> Result<Option<Frame>, FaultError> {
        match file.node().kind() {
            FileKind::Paged(_) => Ok(Some(self.files().page(self.pages(), file, index)?.frame)),
            FileKind::Shmem { .. } => match self.files().peek(self.platform(), file, index) {
                PageLookup::Present(frame) => Ok(Some(frame)),
                PageLookup::Lost => Err(FaultError::Poisoned),
                PageLookup::Missing => Ok(None),
            },
            FileKind::Huge { order, .. } => {
                let (page, inside) = (index / order.frames(), index % order.frames());
                let frames = self.pages().frames();
                // A file that is cut short drops pages that are not cleared yet, too.
                if file.node().is_cut_off(index) {
                    return Err(FaultError::BeyondEnd);
                }
                match self.files().huge_page(self.platform(), file.node(), page) {
                    Some(HugePage::Present { frame, .. })
                        if frames.has_bad(frame) && frames.is_bad(frame.add(inside)) =>
                    {
                        Err(FaultError::Poisoned)
                    }
                    Some(HugePage::Present { frame, .. })
                        if FileClears::of(self.0).reads_as_zero(frame, inside) =>
                    {
                        Ok(None)
                    }
                    Some(HugePage::Present { frame, .. }) => Ok(Some(frame.add(inside))),
                    Some(HugePage::Reserved { .. }) | None => Ok(None),
                }
            }
        }
    }

    /// Calls `access` as a user of the file; again after memory was freed, while there is none. No other task
    /// moves or drops a page while it runs, and it must not wait for user memory.
    pub(super) fn with_user<R>(
        self,
        file: &FileNode,
        mut access: impl FnMut(&FileUse<'_>) -> Result<R, FaultError>,
    ) -> Result<R, FaultError> {
        let mut rounds = 0;
        loop {
            let Some(user) = file.enter() else {
                self.platform().relax();
                continue;
            };
            let done = access(&user);
            // Reclaim waits for users.
            drop(user);
            match done {
                Err(FaultError::OutOfMemory)
                    if rounds < RECLAIM_ROUNDS && Reclaim::of(self.0).reclaim_all() > 0 =>
                {
                    rounds += 1;
                }
                done => return done,
            }
        }
    }
}

/// The page at an offset, and which of its bytes `left` bytes from there reach.
pub(super) fn part_at(offset: u64, left: usize) -> (u64, Range<usize>) {
    let inside = (offset % FRAME_SIZE) as usize;
    (offset / FRAME_SIZE, inside..PAGE.min(inside.saturating_add(left)))
}

pub(super) fn error_of(error: FaultError) -> MmError {
    match error {
        FaultError::OutOfMemory | FaultError::Dying => MmError::NoMemory,
        FaultError::Io | FaultError::Poisoned => MmError::Io,
        FaultError::BeyondEnd
        | FaultError::NotMapped
        | FaultError::Protection
        | FaultError::Marked
        | FaultError::NoHandler
        | FaultError::NoHugePage => MmError::Invalid,
    }
}
