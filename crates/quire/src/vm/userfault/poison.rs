//! Markers for pages that will never come.
#![forbid(unsafe_code)]

use super::answer::{Answer, AnswerMode};
use crate::addr::{PageSize, VirtAddr};
use crate::error::UserfaultError;
use crate::hugetlb::HugeSize;
use crate::platform::Platform;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::space::mm::Mm;

impl<P: Platform> Mm<'_, P> {
    /// Says of `len` bytes from `addr`, of which nothing is mapped, that they are lost: accesses get
    /// [`FaultError::Poisoned`](crate::error::FaultError::Poisoned), in this address space and its children, until the address is unmapped. As
    /// `UFFDIO_POISON`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Exists`] where something is mapped; [`UserfaultError::Invalid`] for private huge pages that
    /// were promised, as a marker there stands for a page that went back to the pool; and as for [`Self::userfault_copy`].
    pub fn userfault_poison(&self, addr: VirtAddr, len: u64, mode: AnswerMode) -> Answer {
        if mode.write_protected {
            return Answer { bytes: 0, stopped: Some(UserfaultError::Invalid) };
        }
        self.answer_range(addr, len, mode, |at, left| {
            let space = self.space.read(self.memory.platform());
            let vma = self.answerable(&space, at, left, mode)?;
            if vma.attributes.flags.contains(VmaFlags::PROMISED) {
                return Err(UserfaultError::Invalid.into());
            }
            let size = vma.attributes.whole_size().map_or(PageSize::Size4K, HugeSize::leaf);
            self.tables().poison_empty(at, size)?;
            Ok(size.bytes())
        })
    }
}
