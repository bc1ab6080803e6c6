//! Answers a missing page with zeroes (`UFFDIO_ZEROPAGE`).

use super::answer::{Answer, AnswerMode, Stop, answer_flags};
use super::bytes::OwnFrame;
use crate::addr::VirtAddr;
use crate::error::UserfaultError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::userfault::answer::Answers;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_zeropage`](crate::vm::Mm::userfault_zeropage).
    pub(in crate::vm) fn userfault_zeropage(self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        self.answer_range(addr, len, mode, |at, left| {
            let space = self.space.read(self.memory.platform());
            let vma = self.answerable(&space, at, left, mode)?;
            if vma.attributes.huge_size().is_some() {
                return self.zero_huge(vma, (at, left), mode);
            }
            self.check_vacant(vma, at)?;
            if vma.attributes.is_private() {
                let flags = answer_flags(vma, false, mode);
                // SAFETY: invariant 1: the zero frame is held as long as the machine runs.
                unsafe { self.tables().map_special(at, self.memory.zero_frame(), flags) }?;
                return Ok(FRAME_SIZE);
            }
            let own = OwnFrame::zeroed(self.memory).map_err(|_| UserfaultError::OutOfMemory)?;
            self.put_own(vma, at, own, mode).map_err(|(stop, _)| -> Stop { stop })?;
            Ok(FRAME_SIZE)
        })
    }
}
