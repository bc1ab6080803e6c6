//! Waking without an answer.
#![forbid(unsafe_code)]

use super::answer::Answer;
use crate::addr::VirtAddr;
use crate::error::UserfaultError;
use crate::platform::Platform;
use crate::vm::space::mm::Mm;

impl<P: Platform> Mm<'_, P> {
    /// Lets every thread go on that waits for a page of `len` bytes from `addr`; one that finds nothing new waits again. As
    /// `UFFDIO_WAKE`. The caller holds no lock.
    ///
    /// # Errors
    /// In the answer: [`UserfaultError::Invalid`].
    pub fn userfault_wake(&self, addr: VirtAddr, len: u64) -> Answer {
        let range = self.layout().range(addr, len).filter(|range| range.len() == len && len > 0);
        match range.filter(|_| addr.is_aligned(crate::limits::FRAME_SIZE)) {
            Some(range) => {
                self.wake_range(range);
                Answer { bytes: len, stopped: None }
            }
            None => Answer { bytes: 0, stopped: Some(UserfaultError::Invalid) },
        }
    }
}
