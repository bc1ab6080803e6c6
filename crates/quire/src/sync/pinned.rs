//! The guard that keeps a task on its CPU.

use crate::cpu::CpuId;
use crate::platform::Platform;

/// Keeps the running task on its CPU for as long as it lives.
pub struct Pinned<'a, P: Platform> {
    platform: &'a P,
    cpu: CpuId,
}

impl<'a, P: Platform> Pinned<'a, P> {
    /// Pins the running task.
    #[inline]
    pub fn new(platform: &'a P) -> Self {
        Self { platform, cpu: platform.pin() }
    }

    /// The CPU that the task stays on.
    #[inline]
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl<P: Platform> Drop for Pinned<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.platform.unpin();
    }
}
