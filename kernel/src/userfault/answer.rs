//! Answers to faults.

use alloc::vec::Vec;

use quire::addr::{VirtAddr, VirtRange};
use quire::error::UserfaultError;
use quire::filemap::FileKind;
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;
use quire::vm::{Answer, AnswerMode};

use super::handler::Handler;
use super::requests::{Structure, page_range};
use crate::errno::Errno;
use crate::memory::manager::Space;

/// The flag of every answer: tasks are woken later.
const DONT_WAKE: u64 = 1;
/// The flag of copies and resumed pages: the page is write-protected.
const PROTECTED: u64 = 2;
/// The flags of `UFFDIO_WRITEPROTECT`.
const PROTECT: u64 = 1;
const PROTECT_DONT_WAKE: u64 = 2;

const PAGE: usize = FRAME_SIZE as usize;

impl Handler {
    pub(super) fn wake(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        let [start, len] = structure.words()?;
        let range = page_range(start, len)?;
        let Ok(space) = self.space() else { return Ok(()) };
        checked(space.userfault_wake(range.start, len)).map(drop)
    }

    pub(super) fn zeropage(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        self.answer(structure, (0, 2, 3), DONT_WAKE, |space, range, mode| {
            if huge_bytes(space, range.start).is_some() {
                return Err(Errno::EINVAL);
            }
            Ok(space.userfault_zeropage(range.start, range.len(), mode))
        })
    }

    pub(super) fn resume(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        self.answer(structure, (0, 2, 3), DONT_WAKE | PROTECTED, |space, range, mode| {
            Ok(space.userfault_continue(range.start, range.len(), mode))
        })
    }

    pub(super) fn poison(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        self.answer(structure, (0, 2, 3), DONT_WAKE, |space, range, mode| {
            Ok(space.userfault_poison(range.start, range.len(), mode))
        })
    }

    pub(super) fn copy(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        let [_, source, len] = structure.words()?;
        if source.checked_add(len).is_none() {
            return Err(Errno::EINVAL);
        }
        self.answer(structure, (0, 3, 4), DONT_WAKE | PROTECTED, |space, range, mode| {
            copy_pages(space, range, structure, VirtAddr(source), mode)
        })
    }

    pub(super) fn write_protect(&self, structure: &Structure<'_>) -> Result<(), Errno> {
        let [start, len, flags] = structure.words()?;
        let range = page_range(start, len)?;
        let protect = flags & PROTECT != 0;
        if flags & !(PROTECT | PROTECT_DONT_WAKE) != 0 || protect && flags & PROTECT_DONT_WAKE != 0 {
            return Err(Errno::EINVAL);
        }
        let mode = if flags & PROTECT_DONT_WAKE != 0 { AnswerMode::QUIET } else { AnswerMode::WAKE };
        checked(self.space()?.userfault_write_protect(range.start, len, protect, mode)).map(drop)
    }

    /// Answers a range. The words with these indices have its start, its flags, and its outcome: the bytes that were
    /// answered, or a negated error. The length stands in the word after the start, or for copies the next but one.
    fn answer(
        &self,
        structure: &Structure<'_>,
        (start, flags, outcome): (usize, usize, u64),
        known: u64,
        answer: impl FnOnce(&Space, VirtRange, AnswerMode) -> Result<Answer, Errno>,
    ) -> Result<(), Errno> {
        let words: [u64; 4] = structure.words()?;
        let range = page_range(words[start], words[flags - 1])?;
        let flags = words[flags];
        if flags & !known != 0 {
            return Err(Errno::EINVAL);
        }
        let mode = AnswerMode { wake: flags & DONT_WAKE == 0, write_protected: flags & PROTECTED != 0 };
        let space = self.space()?;
        let answered =
            check_target(&space, range).and_then(|()| answer(&space, range, mode)).and_then(checked);
        match answered {
            Ok(bytes) => {
                structure.set(outcome, bytes)?;
                if bytes == range.len() { Ok(()) } else { Err(Errno::EAGAIN) }
            }
            Err(errno) => {
                structure.set(outcome, errno.as_result())?;
                Err(errno)
            }
        }
    }
}

/// The bytes that were answered, or the error if none were.
fn checked(answer: Answer) -> Result<u64, Errno> {
    match answer.stopped {
        Some(error) if answer.bytes == 0 => Err(Errno::of(error.errno())),
        _ => Ok(answer.bytes),
    }
}

/// As with Linux, the range must lie in one registered mapping.
fn check_target(space: &Space, range: VirtRange) -> Result<(), Errno> {
    let vma = space.next_vma(range.start).ok_or(Errno::ENOENT)?;
    let registered = vma.range.start <= range.start && range.end <= vma.range.end && !vma.handler.is_empty();
    if registered { Ok(()) } else { Err(Errno::ENOENT) }
}

/// Copies page by page. The program's bytes are read before each page is answered, since reading them may fault.
fn copy_pages(
    space: &Space,
    range: VirtRange,
    structure: &Structure<'_>,
    source: VirtAddr,
    mode: AnswerMode,
) -> Result<Answer, Errno> {
    let unit = huge_bytes(space, range.start).unwrap_or(FRAME_SIZE);
    if !range.start.is_aligned(unit) || !range.len().is_multiple_of(unit) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(unit as usize).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(unit as usize, 0);
    let (quiet, mut done, mut stopped) = (AnswerMode { wake: false, ..mode }, 0, None);
    while done < range.len() && stopped.is_none() {
        if let Err(errno) = structure.memory.read(source.add(done), &mut bytes) {
            if done == 0 {
                return Err(errno);
            }
            stopped = Some(UserfaultError::NotThere);
            break;
        }
        let fill = |offset: u64, page: &mut [u8; PAGE]| {
            page.copy_from_slice(&bytes[offset as usize..][..PAGE]);
        };
        let answer = space.userfault_copy(range.start.add(done), unit, quiet, fill);
        (done, stopped) = (done + answer.bytes, answer.stopped);
    }
    if mode.wake && done > 0 {
        // The range is the one that was answered.
        let _ = space.userfault_wake(range.start, done);
    }
    Ok(Answer { bytes: done, stopped })
}

/// The size of the huge pages that a mapping maps whole, if it does.
fn huge_bytes(space: &Space, at: VirtAddr) -> Option<u64> {
    let vma = space.next_vma(at).filter(|vma| !vma.flags.contains(VmaFlags::SPLIT))?;
    match vma.file {
        Some((FileKind::Huge { order, .. }, _)) => Some(order.bytes()),
        _ => None,
    }
}
