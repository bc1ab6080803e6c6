//! Wakes waiting tasks without an answer (`UFFDIO_WAKE`).
#![forbid(unsafe_code)]

use super::answer::Answer;
use crate::addr::VirtAddr;
use crate::error::UserfaultError;
use crate::platform::Platform;
use crate::vm::userfault::answer::Answers;

impl<P: Platform> Answers<'_, '_, P> {
    /// See [`Mm::userfault_wake`](crate::vm::Mm::userfault_wake).
    pub(in crate::vm) fn userfault_wake(self, addr: VirtAddr, len: u64) -> Answer {
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
