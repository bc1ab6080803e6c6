//! The guard that keeps a task on its CPU.

use crate::cpu::CpuId;
use crate::platform::FramePlatform;

/// Keeps the running task on its CPU for as long as it lives.
pub struct Pinned<'a, P: FramePlatform> {
    platform: &'a P,
    cpu: CpuId,
}

impl<'a, P: FramePlatform> Pinned<'a, P> {
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

impl<P: FramePlatform> Drop for Pinned<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.platform.unpin();
    }
}
