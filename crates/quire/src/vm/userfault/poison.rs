//! Answers with an error: puts a marker where a page will never come (`UFFDIO_POISON`).
#![forbid(unsafe_code)]

use super::answer::{Answer, AnswerMode};
use crate::addr::{PageSize, VirtAddr};
use crate::error::UserfaultError;
use crate::hugetlb::HugeSize;
use crate::platform::Platform;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::userfault::answer::Answers;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_poison`](crate::vm::Mm::userfault_poison).
    pub(in crate::vm) fn userfault_poison(self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        if mode.write_protected {
            return Answer { bytes: 0, stopped: Some(UserfaultError::Invalid) };
        }
        self.answer_range(addr, len, mode, |at, left| {
            let space = self.space.read(self.memory.platform());
            let vma = self.answerable(&space, at, left, mode)?;
            if vma.attributes.flags.contains(VmaFlags::RESERVED) {
                return Err(UserfaultError::Invalid.into());
            }
            let size = vma.attributes.whole_size().map_or(PageSize::Size4K, HugeSize::leaf);
            self.tables().poison_empty(at, size)?;
            Ok(size.bytes())
        })
    }
}
