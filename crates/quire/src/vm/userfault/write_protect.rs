//! Write-protects pages for a handler, and takes the protection off (`UFFDIO_WRITEPROTECT`).
#![forbid(unsafe_code)]

use super::answer::{Answer, AnswerMode};
use super::registration::UserfaultModes;
use crate::addr::{VirtAddr, VirtRange};
use crate::error::UserfaultError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::tlb::FlushBatch;
use crate::vm::hugetlb::ends::check_parts;
use crate::vm::rmap::block_leaves::split_to_mark;
use crate::vm::space::state::Space;
use crate::vm::userfault::answer::Answers;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_write_protect`](crate::vm::Mm::userfault_write_protect).
    pub(in crate::vm) fn userfault_write_protect(
        self,
        addr: VirtAddr,
        len: u64,
        protect: bool,
        mode: AnswerMode,
    ) -> Answer {
        match self.write_protect(addr, len, protect) {
            Ok(range) => {
                if mode.wake && !protect {
                    self.wake_range(range);
                }
                Answer { bytes: len, stopped: None }
            }
            Err(error) => Answer { bytes: 0, stopped: Some(error) },
        }
    }

    fn write_protect(self, addr: VirtAddr, len: u64, protect: bool) -> Result<VirtRange, UserfaultError> {
        let space = self.lock();
        let range = space.layout.range(addr, len).filter(|range| range.len() == len && len > 0);
        let range = range.filter(|_| addr.is_aligned(FRAME_SIZE)).ok_or(UserfaultError::Invalid)?;
        check_parts(&space, range).map_err(|_| UserfaultError::Invalid)?;
        self.check_protectable(&space, range)?;
        self.cut(range).map_err(|_| UserfaultError::OutOfMemory)?;
        self.unshare(range).map_err(|_| UserfaultError::OutOfMemory)?;
        if protect {
            split_to_mark(self.0, &space, range).map_err(|_| UserfaultError::OutOfMemory)?;
        }
        let mut owed = FlushBatch::new();
        let done = if protect {
            self.tables().mark_write_protected(range, &mut owed)
        } else {
            self.tables().unmark_write_protected(range)
        };
        owed.flush(self.memory.pages(), self.context());
        debug_assert_eq!(done, Ok(()), "the ends of {range:?} were cut before");
        Ok(range)
    }

    fn check_protectable(self, space: &Space, range: VirtRange) -> Result<(), UserfaultError> {
        let mut at = range.start;
        for vma in space.tree.overlapping(range) {
            let handler = vma.attributes.handler;
            if vma.range.start > at || !handler.catches(UserfaultModes::WRITE_PROTECT) {
                return Err(UserfaultError::NotRegistered);
            }
            if self.memory.userfaults().is_changing(handler) {
                return Err(UserfaultError::Again);
            }
            at = vma.range.end;
        }
        if at < range.end { Err(UserfaultError::NotRegistered) } else { Ok(()) }
    }
}
